//! What is asked of a target beside the load: its process, how much it has left, and to make ready.
//!
//! One blocking connection per measured server, used only while no load runs.

use std::time::Duration;

use super::commands;
use super::error::BenchError;
use super::plan::Plan;
use super::process::Process;
use super::target::{Endpoint, Target};
use crate::client::{Client, ClientError};
use crate::reply::Reply;

/// Commands sent at once.
const COMMANDS_PER_PIPELINE: usize = 1000;

/// A connection for questions.
#[derive(Debug)]
pub struct Control {
    target: Target,
    client: Client,
}

impl Control {
    /// Connects; `timeout` bounds the connect and every answer.
    pub fn connect(endpoint: &Endpoint, timeout: Duration) -> Result<Self, ClientError> {
        Ok(Self {
            target: endpoint.target,
            client: Client::connect(&endpoint.address, timeout)?,
        })
    }

    /// The process that answers, if it can be watched from here.
    pub fn process(&mut self) -> Result<Option<Process>, ClientError> {
        if !self.client.is_local() || self.target == Target::Echo {
            return Ok(None);
        }
        let (text, field) = match self.target {
            Target::Beanstalkd => (self.yaml("stats")?.unwrap_or_default(), "pid:"),
            _ => {
                let info = self.client.call_ok(&["INFO"])?;
                (info.text().unwrap_or_default().to_owned(), "process_id:")
            }
        };
        Ok(Process::named(&text, field))
    }

    /// Makes what must be there before consumers come: a stream's group.
    pub fn prepare(&mut self, plan: &Plan) -> Result<(), BenchError> {
        if self.target != Target::RedisStream {
            return Ok(());
        }
        let commands: Vec<_> = queue_names(plan)
            .map(|name| commands::make_group(&name))
            .collect();
        for group in commands.chunks(COMMANDS_PER_PIPELINE) {
            for reply in self.client.pipeline(group)? {
                match reply {
                    // It is there: the load was added by another run.
                    Reply::Error(text) if text.starts_with("BUSYGROUP") => {}
                    Reply::Error(text) => return Err(refused("XGROUP", text)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Jobs that a finished load has left in its queues.
    pub fn jobs_left(&mut self, plan: &Plan) -> Result<u64, BenchError> {
        match self.target {
            Target::Shardq | Target::Disque => self.lengths("QLEN", queue_names(plan)),
            Target::RedisList => {
                let work = (0..plan.consumers).map(|consumer| plan.work_list_name(consumer));
                self.lengths("LLEN", queue_names(plan).chain(work))
            }
            Target::RedisStream => self.lengths("XLEN", queue_names(plan)),
            Target::Beanstalkd => self.tube_jobs(plan),
            Target::Echo => Ok(0),
        }
    }

    /// Removes what an emptied load leaves behind: streams without entries, and their groups.
    pub fn tidy_up(&mut self, plan: &Plan) -> Result<(), BenchError> {
        if self.target != Target::RedisStream {
            return Ok(());
        }
        self.lengths("DEL", queue_names(plan)).map(|_| ())
    }

    /// The sum of what a command answers for each name.
    fn lengths(
        &mut self,
        command: &'static str,
        names: impl Iterator<Item = Vec<u8>>,
    ) -> Result<u64, BenchError> {
        let commands: Vec<[Vec<u8>; 2]> = names.map(|name| [command.into(), name]).collect();
        let mut sum = 0;
        for group in commands.chunks(COMMANDS_PER_PIPELINE) {
            for reply in self.client.pipeline(group)? {
                sum += length(command, reply)?;
            }
        }
        Ok(sum)
    }

    /// Jobs in beanstalkd's tubes; a tube that nobody uses any more is not there.
    fn tube_jobs(&mut self, plan: &Plan) -> Result<u64, BenchError> {
        let states = ["ready", "reserved", "delayed", "buried"];
        let mut sum = 0;
        for name in queue_names(plan) {
            let name = String::from_utf8_lossy(&name).into_owned();
            let Some(stats) = self.yaml(&format!("stats-tube {name}"))? else {
                continue;
            };
            for state in states {
                let field = format!("current-jobs-{state}:");
                let value = field_of(&stats, &field).and_then(|value| value.parse::<u64>().ok());
                sum += value.ok_or_else(|| BenchError::Unexpected {
                    command: "stats-tube",
                    found: stats.clone(),
                })?;
            }
        }
        Ok(sum)
    }

    /// The text that one of beanstalkd's `stats` commands answers, `None` for `NOT_FOUND`.
    fn yaml(&mut self, command: &str) -> Result<Option<String>, ClientError> {
        self.client.write_raw(format!("{command}\r\n").as_bytes())?;
        let line = self.client.read_line()?;
        if line == "NOT_FOUND" {
            return Ok(None);
        }
        let bytes = line
            .strip_prefix("OK ")
            .and_then(|length| length.parse::<usize>().ok());
        let Some(bytes) = bytes else {
            return Err(ClientError::Refused {
                command: command.to_owned(),
                text: line,
            });
        };
        let text = self.client.read_exact(bytes + 2)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }
}

fn queue_names(plan: &Plan) -> impl Iterator<Item = Vec<u8>> + '_ {
    (0..plan.queues).map(|queue| plan.queue_name(queue))
}

/// The value behind `field` in lines of `field value`.
pub fn field_of<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(field))
        .map(str::trim)
}

fn refused(command: &'static str, text: String) -> BenchError {
    BenchError::Refused { command, text }
}

fn length(command: &'static str, reply: Reply) -> Result<u64, BenchError> {
    match reply {
        Reply::Error(text) => Err(refused(command, text)),
        Reply::Integer(length) if length >= 0 => Ok(length as u64),
        other => Err(BenchError::Unexpected {
            command,
            found: format!("{other:?}"),
        }),
    }
}

//! `shardq-cli demo`: starts the broker that lies beside this program and shows one job going through it.
//!
//! Each command is shown as a person would type it into `redis-cli`, with its reply. Afterwards the broker goes on in the
//! foreground until Ctrl-C, so that the reader's own first steps need nothing more. `--once` ends it instead.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::address::Address;
use crate::client::{Client, ClientError};
use crate::reply::Reply;

/// How long the broker may take to answer its first PING.
const START_TIMEOUT: Duration = Duration::from_secs(5);
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Run a broker and show a job going through it
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Port of the broker
    #[arg(long, default_value_t = 7711)]
    port: u16,
    /// End the broker after the demonstration
    #[arg(long)]
    once: bool,
    /// More settings for the broker, behind `--`
    #[arg(last = true)]
    settings: Vec<String>,
}

/// Why there was nothing to see.
#[derive(Debug, Error)]
pub enum DemoError {
    /// No broker beside this program.
    #[error("cannot start {path}: {source}; build it first: cargo build --release --workspace")]
    Start {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Somebody else has the port: the demonstration would talk to that one.
    #[error("port {port} is in use ({source}): stop what runs there, or choose another with --port")]
    InUse {
        /// Which.
        port: u16,
        /// What the system said.
        source: std::io::Error,
    },
    /// It ended, or said nothing.
    #[error("the broker does not answer on port {port}: {why}")]
    Silent {
        /// Its port.
        port: u16,
        /// What is known of it.
        why: String,
    },
    /// The conversation failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A reply was not what it must be.
    #[error("{command} answered {reply}")]
    Reply {
        /// What was asked.
        command: String,
        /// The answer.
        reply: String,
    },
    /// The process could not be waited for.
    #[error("lost the broker's process: {0}")]
    Wait(#[from] std::io::Error),
}

/// Starts the broker, shows a job, and waits for the broker's end.
pub fn run(options: &Options) -> Result<(), DemoError> {
    if let Err(source) = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)) {
        let port = options.port;
        return Err(DemoError::InUse { port, source });
    }
    let mut broker = Broker(start(options)?);
    let mut client = connect(options.port, &mut broker.0)?;
    show_a_job(&mut client)?;
    if options.once {
        let _ = client.call(&["SHUTDOWN"]);
    } else {
        println!(
            "The broker runs on 127.0.0.1:{}; try redis-cli -p {0}. Ctrl-C stops it.",
            options.port
        );
    }
    broker.0.wait()?;
    Ok(())
}

/// The broker's process; it does not outlive a demonstration that failed.
struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // It may end in this very moment: then there is nothing to kill.
            let _ = self.0.kill();
        }
    }
}

fn start(options: &Options) -> Result<Child, DemoError> {
    let beside = std::env::current_exe()
        .unwrap_or_default()
        .with_file_name("shardq");
    let port = options.port.to_string();
    let command = Command::new(&beside)
        .args(["--port", &port])
        .args(&options.settings)
        .spawn();
    command.map_err(|source| DemoError::Start { path: beside, source })
}

fn connect(port: u16, broker: &mut Child) -> Result<Client, DemoError> {
    let address = Address::tcp("127.0.0.1", port);
    let started = Instant::now();
    loop {
        if let Some(status) = broker.try_wait()? {
            return Err(DemoError::Silent {
                port,
                why: format!("it ended with {status}; its message is above"),
            });
        }
        match Client::connect(&address, REPLY_TIMEOUT) {
            Ok(client) => return Ok(client),
            Err(error) if started.elapsed() > START_TIMEOUT => {
                return Err(DemoError::Silent {
                    port,
                    why: error.to_string(),
                });
            }
            Err(_) => sleep(Duration::from_millis(10)),
        }
    }
}

fn show_a_job(client: &mut Client) -> Result<(), DemoError> {
    let added = show(
        client,
        &["ADDJOB", "demo", "Hello from a job", "0", "RETRY", "60"],
    )?;
    let id = text_of(&added);
    show(client, &["QLEN", "demo"])?;
    show(client, &["GETJOB", "NOHANG", "WITHCOUNTERS", "FROM", "demo"])?;
    show(client, &["ACKJOB", &id])?;
    show(client, &["QLEN", "demo"])?;
    Ok(())
}

fn show(client: &mut Client, command: &[&str]) -> Result<Reply, DemoError> {
    let typed: Vec<String> = command
        .iter()
        .map(|word| {
            if word.contains(' ') {
                format!("{word:?}")
            } else {
                (*word).to_owned()
            }
        })
        .collect();
    let typed = typed.join(" ");
    let reply = client.call(command)?;
    println!("> {typed}\n{}", text_of(&reply));
    match reply.error() {
        Some(error) => Err(DemoError::Reply {
            command: typed,
            reply: error.to_owned(),
        }),
        None => Ok(reply),
    }
}

/// A reply on one line, for people.
fn text_of(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) => format!("[{}]", items.iter().map(text_of).collect::<Vec<_>>().join(", ")),
        Reply::Integer(number) => number.to_string(),
        other => other.text().map_or_else(|| format!("{other:?}"), str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_in_use_is_left_alone() {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let options = Options {
            port: other.local_addr().expect("it is bound").port(),
            once: true,
            settings: Vec::new(),
        };
        let error = run(&options).expect_err("somebody is there");
        assert!(matches!(error, DemoError::InUse { .. }), "{error}");
        other.set_nonblocking(true).expect("a socket can be");
        assert!(other.accept().is_err(), "nobody talked to it");
    }
}

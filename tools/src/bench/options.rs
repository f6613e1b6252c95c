//! The command line of `shardq-cli bench`.
//!
//! What can be checked without a server is checked here, so that the rest of the bench starts from settings
//! that make sense together.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::commands::AddSettings;
use super::plan::MARK_BYTES;
use super::target::{Endpoint, Target};
use crate::address::Address;

/// Adds, fetches and acknowledges jobs at full speed and checks that none was lost or handed out twice.
///
/// Commands go out in rounds: each connection writes up to --pipeline commands at once and waits for all
/// their answers before the next round. A consumer acknowledges the jobs of its last round in front of the
/// next round's fetches. With --rate, producers wait for nobody instead: each job goes out when it is due.
/// Exits with 1 when a job is missing, doubled or altered.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What kind of server it is
    #[arg(long, value_enum, default_value_t = Target::Shardq)]
    pub target: Target,
    /// Host name or address of the server
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// Port of the server; without it, the usual one of the target
    #[arg(long)]
    pub port: Option<u16>,
    /// Unix socket of the server, instead of host and port
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// What to run; without it, open with --rate, else all
    #[arg(long, value_enum)]
    pub phase: Option<PhaseChoice>,
    /// Number of jobs in each phase
    #[arg(long, default_value_t = 1_000_000)]
    pub jobs: u64,
    /// Jobs a second of all producers together, each sent when it is due whatever is unanswered (open loop)
    #[arg(long, value_name = "JOBS_PER_S")]
    pub rate: Option<NonZeroU32>,
    /// How long --rate goes on, instead of --jobs
    #[arg(long, default_value = "10", value_name = "SECONDS")]
    pub seconds: NonZeroU32,
    /// Jobs added, fetched and acknowledged before the first measured run
    #[arg(long, default_value_t = 0, value_name = "JOBS")]
    pub warm_up: u64,
    /// Runs of all phases; their median, lowest and highest figures are told
    #[arg(long, default_value = "1", value_name = "N")]
    pub repeat: NonZeroU32,
    /// Second target, which every run is followed by a run on, for ratios pair by pair: TARGET, TARGET@PORT,
    /// TARGET@HOST:PORT or TARGET@/PATH
    #[arg(long, value_parser = Endpoint::parse, value_name = "TARGET", conflicts_with = "run")]
    pub compare: Option<Endpoint>,
    /// Name of the target in reports; without it, that of its kind
    #[arg(long)]
    pub label: Option<String>,
    /// Connections of each kind, where --producers or --consumers does not say otherwise
    #[arg(long, default_value = "50")]
    pub connections: NonZeroU32,
    /// Connections that add jobs
    #[arg(long)]
    pub producers: Option<NonZeroU32>,
    /// Connections that fetch and acknowledge jobs
    #[arg(long)]
    pub consumers: Option<NonZeroU32>,
    /// Number of queues, divided among the connections
    #[arg(long, default_value = "1")]
    pub queues: NonZeroU32,
    /// Size of a job's body, or sizes that take turns, as in 12,1000; jobs can be told apart from 12 bytes on
    #[arg(long, default_value = "12", value_name = "BYTES", value_delimiter = ',')]
    pub body: Vec<usize>,
    /// Commands in a round
    #[arg(long, default_value = "16")]
    pub pipeline: NonZeroU32,
    /// COUNT of GETJOB or XREADGROUP; the other targets fetch one job at a time
    #[arg(long, default_value = "1")]
    pub count: NonZeroU32,
    /// How consumers acknowledge
    #[arg(long, value_enum, default_value_t = Acknowledge::Ackjob)]
    pub ack: Acknowledge,
    /// Most IDs in one acknowledgement; without it, all of the last round
    #[arg(long, value_name = "N")]
    pub ack_ids: Option<NonZeroU32>,
    /// Seconds until a job may be fetched: DELAY of ADDJOB, delay of put
    #[arg(long, default_value_t = 0, value_name = "SECONDS")]
    pub delay: u32,
    /// RETRY of the jobs, or time to run of beanstalkd; without it, the server's default (an hour there)
    #[arg(long, value_name = "SECONDS")]
    pub retry: Option<u64>,
    /// REPLICATE of the jobs; without it, the server's default
    #[arg(long, value_name = "N")]
    pub replicate: Option<NonZeroU32>,
    /// Port of the node that consumers connect to, on the same host; without it, that of the producers
    #[arg(long, value_name = "PORT", conflicts_with = "unix")]
    pub consumer_port: Option<u16>,
    /// Ports of all nodes of the cluster on the same host: their CPU time and memory are added up
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with = "unix")]
    pub nodes: Vec<u16>,
    /// Run number (8 hex digits) that marks queues and jobs; needed to drain what another run added
    #[arg(long, value_parser = parse_run, value_name = "HEX", required_if_eq("phase", "drain"))]
    pub run: Option<u32>,
    /// Threads that generate the load
    #[arg(long, default_value = "1")]
    pub threads: NonZeroU32,
    /// CPUs to pin the generator's threads to, as in 1 or 0,2-3
    #[arg(long, value_parser = parse_cpus, value_name = "LIST")]
    pub cpu: Option<CpuList>,
    /// Give up when nothing moves for so long
    #[arg(long, default_value = "10", value_name = "SECONDS")]
    pub stall: NonZeroU32,
    /// Print the result as JSON instead of a table, or write it to a file besides
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Write a page with plots, which needs no other file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Results of earlier runs (files of --json) to plot beside this one
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "report")]
    pub overlay: Vec<PathBuf>,
    /// Print no progress
    #[arg(long)]
    pub quiet: bool,
}

/// Which phases run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PhaseChoice {
    /// Producers only.
    Add,
    /// Consumers only, over jobs that are there.
    Drain,
    /// Producers and consumers at once.
    Both,
    /// Add, then drain, then both with new jobs.
    All,
    /// Producers at a fixed rate (--rate) and consumers at once.
    Open,
    /// Nothing: only --report about --overlay.
    None,
}

/// The command that acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Acknowledge {
    /// ACKJOB
    Ackjob,
    /// FASTACK
    Fastack,
}

impl Acknowledge {
    /// The command's name.
    pub fn command(self) -> &'static str {
        match self {
            Self::Ackjob => "ACKJOB",
            Self::Fastack => "FASTACK",
        }
    }
}

/// CPU numbers, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl Options {
    /// Where the server is.
    pub fn address(&self) -> Address {
        match &self.unix {
            Some(path) => Address::unix(path),
            None => Address::tcp(&self.host, self.port()),
        }
    }

    /// Which phases run.
    pub fn phase(&self) -> PhaseChoice {
        self.phase.unwrap_or(match self.rate {
            Some(_) => PhaseChoice::Open,
            None => PhaseChoice::All,
        })
    }

    /// Jobs of a phase.
    pub fn jobs(&self) -> u64 {
        match (self.phase(), self.rate) {
            (PhaseChoice::Open, Some(rate)) => u64::from(rate.get()) * u64::from(self.seconds.get()),
            _ => self.jobs,
        }
    }

    /// Name of the target in reports.
    pub fn label(&self) -> &str {
        self.label.as_deref().unwrap_or(self.target.name())
    }

    /// These options for the target they are compared with.
    pub fn for_compared(&self) -> Option<Self> {
        let Endpoint { target, address } = self.compare.clone()?;
        let mut options = Self {
            target,
            unix: None,
            label: None,
            consumer_port: None,
            nodes: vec![],
            ..self.clone()
        };
        match address {
            Address::Tcp(host, port) => (options.host, options.port) = (host, Some(port)),
            Address::Unix(path) => options.unix = Some(path),
        }
        if options.label() == self.label() {
            options.label = Some(options.endpoint().to_string());
        }
        Some(options)
    }

    /// Why these options make no sense, `None` if they do.
    pub fn obstacle(&self) -> Option<String> {
        let is_open = self.phase() == PhaseChoice::Open;
        let wrong = match () {
            () if is_open && self.rate.is_none() => "the open phase needs --rate",
            () if !is_open && self.rate.is_some() => "--rate goes with the open phase only",
            () if is_open && self.body.iter().any(|bytes| *bytes < MARK_BYTES) => {
                "the open phase tells jobs apart: use --body 12 or more"
            }
            () if self.phase() == PhaseChoice::Drain && self.repeat.get() > 1 => {
                "what is drained is gone: leave out --repeat"
            }
            () if self.phase() == PhaseChoice::None && self.report.is_none() => {
                "nothing to run and nothing to report: use --report"
            }
            () => return self.target.obstacle(self),
        };
        Some(wrong.to_owned())
    }

    /// What the server is, and where.
    pub fn endpoint(&self) -> Endpoint {
        self.at(self.address())
    }

    /// Each node whose use of the machine is measured.
    pub fn measured(&self) -> Vec<Endpoint> {
        match self.nodes.is_empty() {
            true => vec![self.endpoint()],
            false => self
                .nodes
                .iter()
                .map(|&port| self.at(Address::tcp(&self.host, port)))
                .collect(),
        }
    }

    fn at(&self, address: Address) -> Endpoint {
        Endpoint {
            target: self.target,
            address,
        }
    }

    /// The server's port on TCP.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(self.target.default_port())
    }

    /// What every job is added with.
    pub fn add_settings(&self) -> AddSettings {
        AddSettings {
            retry_s: self.retry,
            replicate: self.replicate.map(NonZeroU32::get),
            delay_s: self.delay,
        }
    }

    /// Where consumers connect to.
    pub fn consumer_address(&self) -> Address {
        match self.consumer_port {
            Some(port) => Address::tcp(&self.host, port),
            None => self.address(),
        }
    }

    /// Number of connections that add.
    pub fn producers(&self) -> u32 {
        self.producers.unwrap_or(self.connections).get()
    }

    /// Number of connections that fetch.
    pub fn consumers(&self) -> u32 {
        self.consumers.unwrap_or(self.connections).get()
    }

    /// How long nothing may move; jobs that are delayed do not.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(u64::from(self.stall.get()) + u64::from(self.delay))
    }
}

fn parse_run(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 16).map_err(|error| format!("not a hexadecimal number of 32 bits: {error}"))
}

fn parse_cpus(text: &str) -> Result<CpuList, String> {
    let number = |word: &str| {
        let cpu: usize = word.parse().map_err(|_| format!("not a CPU number: {word:?}"))?;
        if cpu < CPUS_MAX {
            Ok(cpu)
        } else {
            Err(format!("CPU numbers end at {}", CPUS_MAX - 1))
        }
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("{part} runs backwards"));
        }
        cpus.extend(first..=last);
    }
    Ok(CpuList(cpus))
}

/// Size of the system's set of CPUs.
const CPUS_MAX: usize = rustix::thread::CpuSet::MAX_CPU;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("1").unwrap().0, [1]);
        assert_eq!(parse_cpus("0,2-4").unwrap().0, [0, 2, 3, 4]);
        for wrong in ["", "a", "3-1", "1,", "-1", "99999999"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong:?}");
        }
    }
}

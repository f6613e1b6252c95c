//! The command line of `shardq-cli bench`.
//!
//! What can be checked without a server is checked here, so that the rest of the bench starts from settings
//! that make sense together.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::commands::AddSettings;
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
    /// What to run: all is add, then drain, then both at once with new jobs
    #[arg(long, value_enum, default_value_t = PhaseChoice::All)]
    pub phase: PhaseChoice,
    /// Number of jobs in each phase
    #[arg(long, default_value_t = 1_000_000)]
    pub jobs: u64,
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
    /// Size of a job's body; jobs can be told apart from 12 bytes on
    #[arg(long, default_value_t = 12, value_name = "BYTES")]
    pub body: usize,
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
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
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
    /// Add, drain, then both.
    All,
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

    /// How long nothing may move.
    pub fn stall(&self) -> Duration {
        Duration::from_secs(self.stall.get().into())
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

//! The brokers that a load can be put on.
//!
//! A [`Target`] is an enum and no trait: each place where protocols differ (`commands` for what is sent, [`scan`](super::scan)
//! for what comes back, `control` for what is asked beside the load) matches on it once, most of them before the
//! clock starts, and the loops of producers and consumers are the same code for all.
//!
//! What one job's life is on each of them:
//!
//! | target | add | fetch | acknowledge | left over |
//! | --- | --- | --- | --- | --- |
//! | `shardq`, `disque` | ADDJOB | GETJOB | ACKJOB or FASTACK | QLEN |
//! | `redis-list` | LPUSH | BLMOVE or LMOVE to a list of the consumer's own | LREM there | LLEN of all these lists |
//! | `redis-stream` | XADD | XREADGROUP by one group | XACK, XDEL | XLEN |
//! | `beanstalkd` | put | reserve-with-timeout | delete | stats-tube |
//! | `echo` | a bulk string, which comes back as it is | - | - | - |

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::options::{Acknowledge, Options, PhaseChoice};
use crate::address::Address;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// shardq
    Shardq,
    /// The original Disque: the same protocol under its own name
    Disque,
    /// Redis lists: LPUSH, BLMOVE, LREM
    RedisList,
    /// Redis streams: XADD, XREADGROUP, XACK, XDEL
    RedisStream,
    /// beanstalkd: put, reserve, delete
    Beanstalkd,
    /// No broker: a server in this process that echoes what it gets, to tell what the bench itself costs
    Echo,
}

impl Target {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shardq => "shardq",
            Self::Disque => "disque",
            Self::RedisList => "redis-list",
            Self::RedisStream => "redis-stream",
            Self::Beanstalkd => "beanstalkd",
            Self::Echo => "echo",
        }
    }

    /// The port it listens on where nobody says otherwise.
    pub fn default_port(self) -> u16 {
        match self {
            Self::Shardq | Self::Disque => 7711,
            Self::RedisList | Self::RedisStream => 6379,
            Self::Beanstalkd => 11300,
            Self::Echo => 0,
        }
    }

    /// Most queues one fetch can ask for; a consumer with more asks for them in groups, one after the other.
    pub fn queues_per_fetch_max(self) -> usize {
        match self {
            Self::RedisList | Self::Echo => 1,
            Self::Shardq | Self::Disque | Self::RedisStream => 16,
            // A connection's tubes are named once, when it opens.
            Self::Beanstalkd => usize::MAX,
        }
    }

    /// Why a load of these options cannot run on it, `None` if it can. Options that only bound a size
    /// (`--count`, `--ack-ids`) are no such reason: a target without them takes one.
    pub fn obstacle(self, options: &Options) -> Option<String> {
        let refuses = |is_set: bool, option: &str| is_set.then(|| format!("{} has no {option}", self.name()));
        let is_disque = matches!(self, Self::Shardq | Self::Disque);
        let has_delay = is_disque || self == Self::Beanstalkd;
        let is_cluster = options.consumer_port.is_some() || !options.nodes.is_empty();
        refuses(options.delay > 0 && !has_delay, "delays: leave out --delay")
            .or(refuses(
                options.retry.is_some() && !has_delay,
                "time until a job is given out again: leave out --retry",
            ))
            .or(refuses(
                options.replicate.is_some() && !is_disque,
                "copies: leave out --replicate",
            ))
            .or(refuses(
                options.ack == Acknowledge::Fastack && !is_disque,
                "FASTACK: leave out --ack",
            ))
            .or(refuses(
                is_cluster && !is_disque,
                "nodes that share jobs: leave out --consumer-port and --nodes",
            ))
            .or(refuses(
                self == Self::Echo && !matches!(options.phase(), PhaseChoice::Add | PhaseChoice::Open),
                "jobs to fetch: use --phase add, or --rate",
            ))
    }
}

/// A target and where it is, as `--compare` takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What it is.
    pub target: Target,
    /// Where it is.
    pub address: Address,
}

impl Endpoint {
    /// Reads `TARGET`, `TARGET@PORT`, `TARGET@HOST:PORT` or `TARGET@/PATH`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (name, place) = text
            .split_once('@')
            .map_or((text, None), |(name, place)| (name, Some(place)));
        let target = Target::from_str(name, false).map_err(|_| {
            let names = Target::value_variants().iter().map(|target| target.name());
            format!(
                "no such target; there are {}",
                names.collect::<Vec<_>>().join(", ")
            )
        })?;
        let port = |text: &str| text.parse().map_err(|_| format!("not a port: {text:?}"));
        let address = match place {
            None => Address::tcp("127.0.0.1", target.default_port()),
            Some(path) if path.starts_with('/') => Address::unix(path),
            Some(place) => match place.rsplit_once(':') {
                Some((host, text)) => Address::tcp(host.trim_matches(['[', ']']), port(text)?),
                None => Address::tcp("127.0.0.1", port(place)?),
            },
        };
        Ok(Self { target, address })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.target.name(), self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_as_written() {
        let parsed = |text| Endpoint::parse(text).unwrap().to_string();
        assert_eq!(parsed("beanstalkd"), "beanstalkd at 127.0.0.1:11300");
        assert_eq!(parsed("redis-list@7000"), "redis-list at 127.0.0.1:7000");
        assert_eq!(parsed("disque@h:1"), "disque at h:1");
        assert_eq!(parsed("shardq@[::1]:2"), "shardq at [::1]:2");
        assert_eq!(parsed("shardq@/run/s.sock"), "shardq at /run/s.sock");
        for wrong in ["", "rabbit", "shardq@", "shardq@h:x", "redis-list@99999"] {
            assert!(Endpoint::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        for target in Target::value_variants() {
            let value = target.to_possible_value().unwrap();
            assert_eq!(value.get_name(), target.name());
        }
    }
}

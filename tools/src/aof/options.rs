//! The command line of `shardq-cli aof`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Looks at the log on disk: whether a server could start from it, its records, what they add up to.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Says what is wrong, and what the server would do at its next start. Exits with 0 only if it would start and cut nothing
    Check(Check),
    /// Prints the records, a line for each job that a record names
    Dump(Dump),
    /// Prints what the records add up to. Holds what is known of each living job in memory, bodies excepted
    Stats(Stats),
}

/// What all have in common.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// A data folder (with CURRENT or CURRENT.off), a folder of one generation, or one segment
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
    /// Print no progress
    #[arg(long)]
    pub quiet: bool,
}

/// The options of `check`.
#[derive(Args, Clone, Debug)]
pub struct Check {
    #[command(flatten)]
    #[allow(missing_docs, reason = "its type says it")]
    pub common: Common,
    /// Cut a torn tail as the server would, and keep the cut bytes in a file beside. Refused while a server has the folder
    #[arg(long)]
    pub repair: bool,
}

/// The options of `dump`.
#[derive(Args, Clone, Debug)]
pub struct Dump {
    #[command(flatten)]
    #[allow(missing_docs, reason = "its type says it")]
    pub common: Common,
    /// Print a JSON object a line
    #[arg(long)]
    pub json: bool,
    /// Print so much of each body
    #[arg(long, default_value_t = 32, value_name = "BYTES")]
    pub body: usize,
}

/// The options of `stats`.
#[derive(Args, Clone, Debug)]
pub struct Stats {
    #[command(flatten)]
    #[allow(missing_docs, reason = "its type says it")]
    pub common: Common,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Name so many queues, those with most jobs first
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub queues: usize,
}

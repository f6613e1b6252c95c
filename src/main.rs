//! `shardq`, the server: a thread-per-core job-queue broker that speaks Disque's protocol.
//!
//! Everything that decides is in the crate `shard`; this one is the shell around it. Reading order: `config` (settings)
//! - `node`, `executor` (boot, shutdown) - `worker` (one core's loop) - `net`, `wakeup` (sockets) - `mesh`, `bell` (between cores) - `bus` (between nodes) - `log` (its files) - `telemetry`, `process`.

mod bell;
mod bus;
mod config;
mod executor;
mod log;
mod mesh;
mod net;
mod node;
mod nodes;
mod process;
mod telemetry;
mod wakeup;
mod worker;

use std::process::ExitCode;

use config::Start;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let environment: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .collect();
    match config::load(&arguments, &environment, std::io::stdin()) {
        Ok(Start::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Start::Run(config)) => finish(node::run(*config)),
        Err(error) => finish(Err(error)),
    }
}

fn finish<E: std::fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shardq cannot start: {error}");
            ExitCode::FAILURE
        }
    }
}

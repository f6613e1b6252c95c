//! `shardq-cli`: tools for a running shardq, and for its log on disk.
//!
//! Results go to standard output, progress and errors to standard error; the exit code is 0 only if all went
//! well.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tools::{aof, bench, demo};

/// Tools for the shardq job-queue broker
#[derive(Parser)]
#[command(name = "shardq-cli", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Aof(aof::Options),
    Bench(Box<bench::Options>),
    Demo(demo::Options),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Aof(options) => run_aof(&options),
        Command::Bench(options) => run_bench(&options),
        Command::Demo(options) => run_demo(&options),
    }
}

fn run_aof(options: &aof::Options) -> ExitCode {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let result = aof::run(options, &mut out);
    let flushed = out.flush().map_err(aof::AofError::from);
    match result.and_then(|all_is_well| flushed.map(|()| all_is_well)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            if !error.is_closed_pipe() {
                eprintln!("shardq-cli: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run_bench(options: &bench::Options) -> ExitCode {
    let result = bench::run(options).and_then(|document| {
        document.write(options, &mut std::io::stdout().lock())?;
        Ok(document.passed())
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shardq-cli: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_demo(options: &demo::Options) -> ExitCode {
    match demo::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shardq-cli: {error}");
            ExitCode::FAILURE
        }
    }
}

//! `shardq-cli`: tools for a running shardq.
//!
//! Results go to standard output, progress and errors to standard error; the exit code is 0 only if all went
//! well.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tools::{bench, demo};

/// Tools for the shardq job-queue broker
#[derive(Parser)]
#[command(name = "shardq-cli", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::Options),
    Demo(demo::Options),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Bench(options) => run_bench(&options),
        Command::Demo(options) => run_demo(&options),
    }
}

fn run_bench(options: &bench::Options) -> ExitCode {
    match bench::run(options) {
        Ok(report) => {
            let text = if options.json {
                report.to_json()
            } else {
                report.to_table()
            };
            println!("{}", text.trim_end());
            if report.passed() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
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

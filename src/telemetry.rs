//! The server's log: to standard error or to `logfile`, as much as `loglevel` says, which can change at run time.
//!
//! The original's four words map to tracing's levels; `trace`, ours, shows what the libraries say too.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use shard::input::LogLevel;
use tracing::{Level, debug, error, info, warn};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts the log. Called once.
pub fn start(loglevel: &str, logfile: &str) -> io::Result<()> {
    let (writer, is_colourful) = if logfile.is_empty() {
        (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal())
    } else {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(Path::new(logfile))?;
        (BoxMakeWriter::new(Mutex::new(file)), false)
    };
    let (filter, handle) = reload::Layer::new(targets(loglevel));
    let lines = fmt::layer()
        .with_writer(writer)
        .with_ansi(is_colourful)
        .with_target(false)
        .with_filter(filter);
    tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .map_err(io::Error::other)?;
    FILTER.set(handle).map_err(|_| io::Error::other("started twice"))
}

/// Changes how much is logged.
pub fn set_level(loglevel: &str) {
    let handle = FILTER
        .get()
        .expect("the log is started before any setting can change");
    if let Err(error) = handle.reload(targets(loglevel)) {
        warn!("cannot change the log level: {error}");
    }
}

/// Logs a line that the shard wants logged.
pub fn log(level: LogLevel, text: &str) {
    match level {
        LogLevel::Debug => debug!("{text}"),
        LogLevel::Info => info!("{text}"),
        LogLevel::Warn => warn!("{text}"),
        LogLevel::Error => error!("{text}"),
    }
}

/// Ends the process at once with exit code 1: what it knows can no longer be trusted, so it writes nothing more, not even what an orderly stop writes.
pub fn die(why: &str) -> ! {
    error!("stopped: {why}");
    eprintln!("shardq {} stops: {why}", env!("CARGO_PKG_VERSION"));
    std::process::exit(1)
}

/// Our own lines at the level asked for; those of libraries only when they warn, except under `trace`.
fn targets(loglevel: &str) -> Targets {
    let level = match loglevel {
        "trace" => Level::TRACE,
        "debug" | "verbose" => Level::DEBUG,
        "warning" => Level::WARN,
        _ => Level::INFO,
    };
    let of_libraries = if level == Level::TRACE {
        LevelFilter::TRACE
    } else {
        LevelFilter::ERROR
    };
    Targets::new()
        .with_target(env!("CARGO_PKG_NAME"), level)
        .with_default(of_libraries)
}

//! LATENCY: what took long (HISTORY, LATEST, GRAPH, DOCTOR, RESET), and how long commands take (HISTOGRAM).
//!
//! Events are kept from `latency-monitor-threshold` on, on each shard; the answers are about the node. HISTOGRAM is
//! Redis': for each command its calls and how many of them took at most so many microseconds; a map in RESP3.

mod text;

use super::view::Part;
use super::{Finish, Gather, Plan, table, words};
use crate::core::Core;
use crate::error::CommandError;
use crate::limits;
use crate::node::Change;
use crate::session::Session;
use crate::stats::{CommandNo, CommandStats, LatencyEvent, merge_events};
use crate::wire::{Args, Encoder};

/// Grammar.
pub fn plan(_: &Core, _: &Session, args: &Args<'_>) -> Result<Plan, CommandError> {
    let gather = |finish| Plan::Gather {
        ask: Gather::Latency,
        question: None,
        finish,
    };
    match (words::lowercase(&args[1]).as_str(), args.len()) {
        ("history", 3) => Ok(gather(finish_history)),
        ("latest", 2) => Ok(gather(finish_latest)),
        ("graph", 3) => Ok(gather(finish_graph)),
        ("doctor", 2) => Ok(gather(finish_doctor)),
        ("reset", count) => {
            words::check_number("events", count - 2, limits::NAMES)?;
            let events = args
                .iter()
                .skip(2)
                .map(|name| String::from_utf8_lossy(name).into_owned())
                .collect();
            let finish = |call: &mut Finish<'_>, count| call.reply().integer(count);
            Ok(Plan::Change {
                change: Change::ResetLatency(events),
                finish,
            })
        }
        ("histogram", count) => {
            words::check_number("names", count - 2, limits::NAMES)?;
            Ok(Plan::Gather {
                ask: Gather::Commands,
                question: None,
                finish: finish_histogram,
            })
        }
        ("help", 2) => Ok(Plan::Local(|call| {
            words::write_help(&mut call.reply(), "LATENCY", HELP);
            Ok(())
        })),
        (subcommand @ ("history" | "latest" | "graph" | "doctor" | "help"), _) => {
            Err(words::arity("latency", subcommand))
        }
        _ => Err(words::unknown_subcommand("latency", args)),
    }
}

const HELP: &[(&str, &str)] = &[
    (
        "HISTORY <event>",
        "Show the samples of an event: time and milliseconds.",
    ),
    (
        "LATEST",
        "Show the last sample of each event, and its longest ever.",
    ),
    ("GRAPH <event>", "Draw the samples of an event."),
    ("DOCTOR", "Say in words what took long."),
    ("RESET [<event> ...]", "Forget these events, or all."),
    (
        "HISTOGRAM [<command> ...]",
        "Show how long these commands take, or all that were called.",
    ),
];

fn events(call: &mut Finish<'_>) -> Vec<LatencyEvent> {
    let parts = std::mem::take(&mut call.parts);
    merge_events(parts.into_iter().map(|part| match part {
        Part::Latency(events) => events,
        _ => Vec::new(),
    }))
}

/// The event that argument 2 names.
fn named_event(call: &mut Finish<'_>) -> Option<LatencyEvent> {
    let name = call.args[2].clone();
    events(call)
        .into_iter()
        .find(|event| name.eq_ignore_ascii_case(event.name.as_bytes()))
}

fn finish_history(call: &mut Finish<'_>) {
    let samples = named_event(call).map(|event| event.samples).unwrap_or_default();
    write_samples(&mut call.reply(), &samples);
}

fn write_samples(out: &mut Encoder<'_>, samples: &[(u64, u64)]) {
    out.array(samples.len());
    for (at_s, took_ms) in samples {
        out.array(2);
        out.integer(*at_s as i64);
        out.integer(*took_ms as i64);
    }
}

fn finish_latest(call: &mut Finish<'_>) {
    let events = events(call);
    write_latest(&mut call.reply(), &events);
}

fn write_latest(out: &mut Encoder<'_>, events: &[LatencyEvent]) {
    out.array(events.len());
    for event in events {
        let (at_s, took_ms) = event.latest();
        out.array(4);
        out.bulk(event.name);
        out.integer(at_s as i64);
        out.integer(took_ms as i64);
        out.integer(event.max_ms as i64);
    }
}

fn finish_graph(call: &mut Finish<'_>) {
    let now_s = call.now.wall_s();
    match named_event(call) {
        Some(event) => {
            let graph = text::graph(&event, now_s);
            call.reply().bulk(graph);
        }
        None => {
            let name = String::from_utf8_lossy(&call.args[2]).into_owned();
            let error = CommandError::other(format!("No samples available for event '{name}'"));
            call.reply().error(error.to_string());
        }
    }
}

fn finish_doctor(call: &mut Finish<'_>) {
    let events = events(call);
    let report = text::doctor(&events, call.core.settings.latency_threshold_ms);
    call.reply().bulk(report);
}

fn finish_histogram(call: &mut Finish<'_>) {
    let mut node = CommandStats::default();
    for part in std::mem::take(&mut call.parts) {
        if let Part::Commands(stats) = part {
            node.add(&stats);
        }
    }
    let wanted: Vec<u8> = match call.args.len() {
        2 => (0..table::COMMANDS.len() as u8).collect(),
        _ => call
            .args
            .iter()
            .skip(2)
            .filter_map(|name| table::find(name))
            .collect(),
    };
    write_histograms(&mut call.reply(), &node, &wanted);
}

/// The histograms of those of the wanted commands that were called.
fn write_histograms(out: &mut Encoder<'_>, stats: &CommandStats, wanted: &[u8]) {
    let histograms: Vec<_> = wanted
        .iter()
        .filter_map(|&number| stats.histogram_us(CommandNo(number)).map(|found| (number, found)))
        .collect();
    out.map(histograms.len());
    for (number, (calls, buckets)) in histograms {
        out.bulk(table::COMMANDS[usize::from(number)].name);
        out.map(2);
        out.bulk("calls");
        out.integer(calls as i64);
        out.bulk("histogram_usec");
        out.map(buckets.len());
        for (bound_us, count) in buckets {
            out.integer(bound_us as i64);
            out.integer(count as i64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::testing::reply;

    #[test]
    fn samples_and_the_latest() {
        let event = LatencyEvent {
            name: "command",
            samples: vec![(5, 10), (7, 20)],
            max_ms: 40,
        };
        assert_eq!(
            reply(false, |out| write_samples(out, &event.samples)),
            "*2\r\n*2\r\n:5\r\n:10\r\n*2\r\n:7\r\n:20\r\n"
        );
        assert_eq!(
            reply(false, |out| write_latest(out, &[event])),
            "*1\r\n*4\r\n$7\r\ncommand\r\n:7\r\n:20\r\n:40\r\n"
        );
        assert_eq!(reply(false, |out| write_samples(out, &[])), "*0\r\n");
    }

    #[test]
    fn histograms_are_flat_or_maps() {
        let ping = table::find(b"ping").expect("a command");
        let mut stats = CommandStats::default();
        stats.record(CommandNo(ping), 1, 1);
        stats.record(CommandNo(ping), 3, 1);
        let write = |out: &mut Encoder<'_>| write_histograms(out, &stats, &[0, ping]);
        assert_eq!(
            reply(false, write),
            "*2\r\n$4\r\nping\r\n*4\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n*4\r\n:1\r\n:1\r\n:4\r\n:2\r\n"
        );
        assert_eq!(
            reply(true, write),
            "%1\r\n$4\r\nping\r\n%2\r\n$5\r\ncalls\r\n:2\r\n$14\r\nhistogram_usec\r\n%2\r\n:1\r\n:1\r\n:4\r\n:2\r\n"
        );
    }
}

//! The bench of `shardq-cli` against the real server: it checks every job by its sequence, and the server must pass.

mod support;

use clap::Parser;
use support::{Server, scaled};
use tools::bench::report::Latency;
use tools::bench::{self, Options};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn run(server: &Server, words: &str) -> bench::Document {
    let fixed = format!(
        "bench --host 127.0.0.1 --port {} --quiet --stall 60 ",
        server.port()
    );
    let line = Line::parse_from((fixed + words).split_ascii_whitespace());
    bench::run(&line.options).expect("the bench runs")
}

#[test]
fn no_job_is_lost_or_doubled_under_the_bench() {
    for shards in [1, 2, 3] {
        let server = Server::start(&format!("--shards {shards}"));
        let jobs = scaled(5000);
        for load in [
            "--connections 10 --pipeline 64",
            "--connections 8 --queues 8 --count 7 --ack fastack --body 2000",
            "--producers 3 --consumers 9 --queues 3 --pipeline 1 --retry 0 --body 12,3000",
        ] {
            let report = run(&server, &format!("--jobs {jobs} {load}"));
            assert!(report.passed(), "{shards} shards, {load}:\n{}", report.to_table());
            assert_eq!(report.runs[0].phases.len(), 3);
            assert_eq!(
                server.info("jobs", "registered_jobs"),
                "0",
                "{shards} shards, {load}"
            );
        }
    }
}

#[test]
fn no_job_is_lost_or_doubled_in_an_open_loop() {
    let server = Server::start("--shards 2");
    let load = "--rate 2000 --seconds 1 --connections 4 --queues 4 --delay 1 --threads 2";
    let document = run(&server, load);
    assert!(document.passed(), "{}", document.to_table());
    let phase = &document.runs[0].phases[0];
    let open = phase.open.as_ref().expect("an open loop");
    let number = |latency: &Option<Latency>| latency.as_ref().map(|latency| latency.rounds);
    assert_eq!((phase.jobs, number(&open.answered)), (2000, Some(2000)));
    assert_eq!(number(&open.delivered), Some(2000));
    assert_eq!(server.info("jobs", "registered_jobs"), "0");
}

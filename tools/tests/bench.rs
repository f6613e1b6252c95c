//! The bench against a broker that works, and against one that loses, doubles, alters and refuses jobs.
//!
//! A checker nobody saw fail is no checker: each fault has to turn up in the verdict, as what it is.

mod fake;

use clap::Parser;
use fake::Fault;
use std::process::{Command, Output};
use tools::address::Address;
use tools::bench::report::{Latency, PhaseReport};
use tools::bench::target::Target;
use tools::bench::{self, BenchError, Options, Report};

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(address: &Address, words: &str) -> Options {
    let Address::Tcp(host, port) = address else {
        panic!("the fake listens on TCP")
    };
    let fixed = format!("bench --host {host} --port {port} --quiet --stall 3 ");
    Line::parse_from((fixed + words).split_ascii_whitespace()).options
}

/// The report of the only run.
fn run_at(address: &Address, words: &str) -> Result<Report, BenchError> {
    let document = bench::run(&options(address, words))?;
    assert_eq!(document.runs.len(), 1);
    Ok(document.runs.into_iter().next().unwrap())
}

fn run(fault: Fault, words: &str) -> Result<Report, BenchError> {
    run_at(&fake::start(fault), words)
}

/// The targets but shardq.
const OTHERS: [Target; 3] = [Target::RedisList, Target::RedisStream, Target::Beanstalkd];

fn run_on(target: Target, fault: Fault, words: &str) -> Result<Report, BenchError> {
    let words = format!("--target {} {words}", target.name());
    run_at(&fake::start_as(target, fault), &words)
}

fn last(report: &Report) -> &PhaseReport {
    report.phases.last().expect("at least one phase")
}

#[test]
fn every_shape_of_load_comes_through_whole() {
    let shapes = [
        "--jobs 3000",
        "--jobs 200 --connections 3 --pipeline 1",
        "--jobs 1000 --producers 3 --consumers 5 --queues 2 --pipeline 7 --count 4 --ack fastack",
        "--jobs 1000 --producers 2 --consumers 1 --queues 40 --pipeline 64 --ack-ids 3",
        "--jobs 2000 --connections 8 --threads 2 --body 3000 --count 10 --retry 60",
        "--jobs 500 --connections 4 --body 5",
        "--jobs 500 --connections 4 --body 12,100,5000 --queues 3",
        "--jobs 100 --connections 4 --body 0,5",
        "--jobs 20 --connections 2 --body 1000000 --pipeline 3",
        "--jobs 3 --connections 5",
        "--jobs 0 --connections 2",
    ];
    for shape in shapes {
        let report = run(Fault::None, shape).unwrap();
        assert!(report.passed(), "{shape}: {}", report.to_table());
        let names: Vec<&str> = report.phases.iter().map(|phase| phase.phase.as_str()).collect();
        assert_eq!(names, ["add", "drain", "both"], "{shape}");
        for phase in &report.phases {
            assert_eq!(phase.jobs, phase.jobs_expected, "{shape}: {}", phase.phase);
            assert_eq!(phase.verdict.is_some(), phase.phase != "add", "{shape}");
        }
    }
}

#[test]
fn every_target_comes_through_whole() {
    let shapes = [
        "--jobs 1000 --connections 4",
        "--jobs 200 --connections 3 --pipeline 1",
        "--jobs 600 --producers 3 --consumers 5 --queues 2 --pipeline 7 --count 4",
        "--jobs 600 --producers 2 --consumers 1 --queues 20 --pipeline 16 --ack-ids 3 --count 5",
        "--jobs 20 --connections 2 --body 20,100000 --pipeline 3",
        "--jobs 100 --connections 4 --body 5",
    ];
    for target in OTHERS {
        for shape in shapes {
            let report = run_on(target, Fault::None, shape).unwrap();
            assert!(report.passed(), "{target:?}, {shape}: {}", report.to_table());
            assert_eq!(report.phases.len(), 3, "{target:?}, {shape}");
            assert!(
                report.phases.iter().all(|phase| phase.server.is_some()),
                "{target:?}"
            );
        }
    }
}

#[test]
fn every_target_is_caught_at_every_fault() {
    let words = "--jobs 300 --connections 3 --body 20 --phase both";
    for target in OTHERS {
        let verdict = |fault| {
            let report = run_on(target, fault, words).unwrap();
            assert!(!report.passed(), "{target:?}, {fault:?}");
            last(&report).verdict.clone().unwrap()
        };
        let lost = verdict(Fault::Lose(77));
        assert_eq!((lost.missing, lost.doubled), (1, 0), "{target:?}");
        let doubled = verdict(Fault::Double(77));
        assert_eq!((doubled.missing, doubled.doubled), (0, 1), "{target:?}");
        assert_eq!(verdict(Fault::Alter(77)).altered, 1, "{target:?}");
        let forgotten = verdict(Fault::Forget(77));
        assert_eq!(
            (forgotten.missing, forgotten.unacknowledged),
            (0, 1),
            "{target:?}"
        );
        let refused = run_on(target, Fault::Refuse(50), words).unwrap_err().to_string();
        assert!(refused.contains("with an error: O"), "{target:?}: {refused}");
    }
}

#[test]
fn what_a_target_does_not_have_is_refused() {
    for (target, words) in [
        (Target::RedisList, "--delay 1"),
        (Target::RedisStream, "--retry 1"),
        (Target::Beanstalkd, "--replicate 2"),
        (Target::Beanstalkd, "--ack fastack"),
        (Target::RedisList, "--nodes 1,2"),
    ] {
        let error = run_on(target, Fault::None, words).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("{} has no ", target.name())),
            "{error}"
        );
    }
}

#[test]
fn figures_are_those_of_the_load() {
    let report = run(Fault::None, "--jobs 2000 --connections 4 --pipeline 10").unwrap();
    let [add, drain, both] = report.phases.as_slice() else {
        panic!("three phases")
    };
    assert_eq!(add.commands, 2000);
    assert_eq!(add.add_round.as_ref().unwrap().rounds, 200);
    assert!(add.fetch_round.is_none() && drain.add_round.is_none());
    assert!(drain.commands > 2000 && both.commands > 4000);
    for phase in &report.phases {
        let server = phase.server.as_ref().expect("the fake runs in this process");
        assert!(server.resident_after_bytes > 0 && phase.seconds > 0.0 && phase.jobs_per_second > 0.0);
        assert_eq!(server.bytes_per_queued_job.is_some(), phase.phase == "add");
    }
}

#[test]
fn a_drain_finds_what_an_add_left() {
    let address = fake::start(Fault::None);
    let words = "--jobs 100 --connections 2 --run 00c0ffee --phase";
    assert!(run_at(&address, &format!("{words} add")).unwrap().passed());
    assert!(run_at(&address, &format!("{words} drain")).unwrap().passed());
    let again = run_at(&address, &format!("{words} drain")).unwrap();
    let verdict = last(&again).verdict.as_ref().unwrap();
    assert!(last(&again).stalled && verdict.missing == 100 && !again.passed());
}

#[test]
fn a_lost_job_fails_drain_and_both() {
    for phase in ["all", "both"] {
        let report = run(
            Fault::Lose(77),
            &format!("--jobs 500 --connections 4 --phase {phase}"),
        )
        .unwrap();
        assert!(!report.passed(), "{phase}");
        let verdict = last(&report).verdict.as_ref().unwrap();
        assert_eq!((verdict.missing, verdict.doubled), (1, 0), "{phase}");
        assert_eq!(verdict.missing_examples.len(), 1, "{phase}");
        assert!(last(&report).stalled, "{phase}: the bench waited for it");
    }
}

#[test]
fn a_doubled_job_fails_drain_and_both() {
    for phase in ["all", "both"] {
        let words = format!("--jobs 500 --connections 4 --phase {phase}");
        let report = run(Fault::Double(77), &words).unwrap();
        assert!(!report.passed(), "{phase}");
        let verdict = last(&report).verdict.as_ref().unwrap();
        assert_eq!((verdict.missing, verdict.doubled), (0, 1), "{phase}");
    }
    // The very last job has its copy behind it, and the load is complete without that one.
    let report = run(Fault::Double(499), "--jobs 500 --connections 1 --pipeline 1").unwrap();
    let verdict = last(&report).verdict.as_ref().unwrap();
    assert_eq!((verdict.missing, verdict.doubled + verdict.left_queued), (0, 1));
    assert!(!report.passed());
}

#[test]
fn an_altered_or_forgotten_job_fails() {
    let report = run(
        Fault::Alter(5),
        "--jobs 100 --connections 2 --body 20 --phase both",
    )
    .unwrap();
    let verdict = last(&report).verdict.as_ref().unwrap();
    assert_eq!((verdict.altered, report.passed()), (1, false));
    let report = run(Fault::Forget(5), "--jobs 100 --connections 2 --phase both").unwrap();
    let verdict = last(&report).verdict.as_ref().unwrap();
    assert_eq!(
        (verdict.missing, verdict.unacknowledged, report.passed()),
        (0, 1, false)
    );
}

#[test]
fn errors_of_the_server_end_the_bench() {
    let error = run(Fault::Refuse(50), "--jobs 100 --connections 2").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the server answered ADDJOB with an error: OOM no memory left"
    );
    let error = run(
        Fault::Close(50),
        "--jobs 100 --connections 2 --phase both --threads 2",
    )
    .unwrap_err();
    assert!(matches!(error, BenchError::Closed), "{error}");
}

#[test]
fn an_unanswered_command_is_given_up() {
    let report = run(Fault::Ignore(50), "--jobs 100 --connections 2 --phase add").unwrap();
    assert!(last(&report).stalled && !report.passed());
}

#[test]
fn an_open_loop_sends_every_job_when_it_is_due() {
    let words = "--rate 2000 --seconds 1 --connections 3 --threads 2";
    for target in [
        Target::Shardq,
        Target::RedisList,
        Target::RedisStream,
        Target::Beanstalkd,
    ] {
        let report = run_on(target, Fault::None, words).unwrap();
        assert!(report.passed(), "{target:?}: {}", report.to_table());
        let phase = last(&report);
        assert_eq!(
            (phase.phase.as_str(), phase.jobs, report.phases.len()),
            ("open", 2000, 1)
        );
        // The last job is due at 1999/2000 s; nothing can come before it.
        assert!(phase.seconds >= 0.999, "{target:?}: {}", phase.seconds);
        let open = phase.open.as_ref().unwrap();
        for latency in [&open.sent, &open.answered, &open.delivered] {
            assert_eq!(latency.as_ref().unwrap().rounds, 2000, "{target:?}");
        }
        let max_us = |latency: &Option<Latency>| latency.as_ref().unwrap().max_us;
        assert!(max_us(&open.answered) > 0.0 && max_us(&open.delivered) > 0.0);
        assert!(phase.add_round.is_none(), "an open loop has no rounds");
    }
}

#[test]
fn an_open_loop_finds_faults_too() {
    let words = "--rate 1000 --seconds 1 --connections 2";
    let report = run(Fault::Lose(500), words).unwrap();
    assert_eq!(last(&report).verdict.as_ref().unwrap().missing, 1);
    let report = run(Fault::Double(500), words).unwrap();
    assert_eq!(last(&report).verdict.as_ref().unwrap().doubled, 1);
    let report = run(Fault::Ignore(500), words).unwrap();
    assert!(last(&report).stalled && !report.passed());
}

/// A server that answers late delays no job that is due, and every job tells of the wait.
#[test]
fn an_open_loop_omits_no_latency() {
    let report = run(
        Fault::Pause(100),
        "--rate 1000 --seconds 1 --connections 1 --phase open",
    )
    .unwrap();
    assert!(report.passed(), "{}", report.to_table());
    let answered = last(&report).open.as_ref().unwrap().answered.as_ref().unwrap();
    // The pause takes half of the second: jobs due in it wait for its end, so a quarter of all jobs waits
    // half of it or longer. Rounds would have had one slow answer.
    let pause_us = fake::PAUSE.as_micros() as f64;
    let at = |quantile: f64| answered.curve.iter().find(|point| point.0 >= quantile).unwrap().1;
    assert!(answered.max_us >= pause_us * 0.99, "{}", answered.max_us);
    assert!(at(0.79) >= pause_us * 0.4, "{:?}", answered.curve);
}

#[test]
fn an_echo_tells_what_the_bench_itself_takes() {
    for words in ["--rate 500 --seconds 1", "--phase add --jobs 1000 --warm-up 100"] {
        let words = format!("--target echo --connections 2 {words}");
        let report = run_at(&Address::tcp("127.0.0.1", 0), &words).unwrap();
        assert!(report.passed(), "{}", report.to_table());
        assert!(last(&report).server.is_none() && last(&report).verdict.is_none());
    }
}

#[test]
fn runs_are_repeated_and_summed_up() {
    let words = "--jobs 200 --connections 2 --repeat 3 --warm-up 50";
    let document = bench::run(&options(&fake::start(Fault::None), words)).unwrap();
    assert!(document.passed());
    assert_eq!(document.runs.len(), 3);
    let phases: Vec<&str> = document.summaries.iter().map(|it| it.phase.as_str()).collect();
    assert_eq!(phases, ["add", "drain", "both"]);
    for summary in &document.summaries {
        let rate = summary.figures["jobs_per_second"];
        assert!(summary.runs == 3 && rate.min <= rate.median && rate.median <= rate.max && rate.min > 0.0);
    }
}

#[test]
fn a_failed_run_is_the_last() {
    let words = "--jobs 100 --connections 2 --repeat 3 --phase both";
    let document = bench::run(&options(&fake::start(Fault::Double(150)), words)).unwrap();
    assert_eq!((document.runs.len(), document.passed()), (2, false));
    let error = bench::run(&options(
        &fake::start(Fault::Double(5)),
        &format!("{words} --warm-up 50"),
    ));
    assert!(matches!(error, Err(BenchError::WarmUp { .. })));
}

#[test]
fn two_targets_run_in_turn() {
    let (first, second) = (
        fake::start(Fault::None),
        fake::start_as(Target::Beanstalkd, Fault::None),
    );
    let Address::Tcp(_, port) = second else {
        panic!("TCP")
    };
    let words = format!("--jobs 200 --connections 2 --phase both --repeat 2 --compare beanstalkd@{port}");
    let document = bench::run(&options(&first, &words)).unwrap();
    let labels: Vec<&str> = document.runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(labels, ["shardq", "beanstalkd", "shardq", "beanstalkd"]);
    let rates = &document.comparisons[0];
    assert_eq!((rates.figure.as_str(), rates.pairs.len()), ("jobs_per_second", 2));
    for (ours, theirs, ratio) in &rates.pairs {
        assert!((ours / theirs - ratio).abs() < 1e-9 && *ratio > 0.0);
    }
    let error = bench::run(&options(&first, &format!("{words} --replicate 2"))).unwrap_err();
    assert!(
        error.to_string().starts_with("beanstalkd has no copies"),
        "{error}"
    );
}

#[test]
fn options_that_do_not_fit_together_are_refused() {
    let address = fake::start(Fault::None);
    for (words, reason) in [
        ("--phase open", "the open phase needs --rate"),
        ("--phase add --rate 5", "--rate goes with the open phase only"),
        (
            "--rate 5 --body 11",
            "the open phase tells jobs apart: use --body 12 or more",
        ),
        (
            "--phase drain --run 1 --repeat 2",
            "what is drained is gone: leave out --repeat",
        ),
        (
            "--phase none",
            "nothing to run and nothing to report: use --report",
        ),
        (
            "--target echo",
            "echo has no jobs to fetch: use --phase add, or --rate",
        ),
    ] {
        let error = bench::run(&options(&address, words)).unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
}

#[test]
fn sequence_numbers_that_do_not_fit_are_refused() {
    let error = run(Fault::None, "--jobs 5000000000 --connections 1").unwrap_err();
    assert!(matches!(error, BenchError::TooManyJobs));
}

fn shardq_cli(address: &Address, words: &str) -> Output {
    let Address::Tcp(host, port) = address else {
        panic!("the fake listens on TCP")
    };
    let line = format!("bench --host {host} --port {port} --stall 3 --connections 2 --jobs 200 {words}");
    let binary = env!("CARGO_BIN_EXE_shardq-cli");
    Command::new(binary)
        .args(line.split_ascii_whitespace())
        .output()
        .expect("the binary runs")
}

#[test]
fn the_binary_prints_a_table_or_json() {
    let address = fake::start(Fault::None);
    let output = shardq_cli(&address, "--cpu 0");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        table.contains("both: all 200 jobs came, each exactly once"),
        "{table}"
    );
    let output = shardq_cli(&address, "--json");
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["runs"][0]["phases"][1]["verdict"]["missing"], 0);
    assert_eq!(json["runs"][0]["phases"][2]["jobs"], 200);
}

#[test]
fn the_binary_writes_json_and_a_page_that_overlays_it() {
    let folder = std::env::temp_dir().join(format!("shardq-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (json, page) = (folder.join("one.json"), folder.join("page.html"));
    let (json_text, page_text) = (json.display(), page.display());
    let address = fake::start(Fault::None);
    let output = shardq_cli(&address, &format!("--json {json_text} --label mine"));
    assert!(output.status.success());
    assert!(
        String::from_utf8(output.stdout).unwrap().contains("mine at"),
        "the table comes too"
    );
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(written["summaries"][2]["figures"]["jobs_per_second"]["min"].is_number());

    let output = shardq_cli(
        &address,
        &format!("--report {page_text} --overlay {json_text} {json_text}"),
    );
    assert!(output.status.success());
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(
        text.contains("this: shardq") && text.contains("one: mine"),
        "{text}"
    );

    let words = format!("--phase none --report {page_text} --overlay {json_text}");
    let output = shardq_cli(&address, &words);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(!std::fs::read_to_string(&page).unwrap().contains("shardq at"));

    let output = shardq_cli(
        &address,
        &format!("--phase none --report {page_text} --overlay {page_text}"),
    );
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("shardq-cli: cannot read "), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_binary_fails_aloud() {
    let output = shardq_cli(&fake::start(Fault::Lose(9)), "");
    assert_eq!(output.status.code(), Some(1));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("FAILED, of 200 jobs: 1 missing"), "{table}");

    let nobody = Address::tcp("127.0.0.1", free_port());
    let output = shardq_cli(&nobody, "");
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with(&format!("shardq-cli: cannot connect to {nobody}: ")),
        "{error}"
    );

    assert_eq!(
        shardq_cli(&nobody, "--phase drain").status.code(),
        Some(2),
        "a drain needs --run"
    );
}

/// A port nobody listens on.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

//! House rules that no compiler checks: file headers, layering, sizes, words.

use std::fs;
use std::path::{Path, PathBuf};

/// All Rust files below a folder of the repository.
fn rust_files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder is readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(
        !files.is_empty(),
        "{folder} has no Rust files: the rule would check nothing"
    );
    files
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("a source file is readable text")
}

/// The lines of a file that are code: no comments, and nothing from its unit tests on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered
        .take_while(|(_, line)| !line.starts_with("#[cfg(test)]"))
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// Whether a file holds nothing but tests.
fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str().to_string_lossy().contains("tests"))
}

fn assert_none(offences: &[String], rule: &str) {
    assert!(offences.is_empty(), "{rule}:\n{}", offences.join("\n"));
}

#[test]
fn every_file_says_why_it_exists() {
    let folders = ["src", "shard", "tools", "tests", "benches"];
    let files = folders.iter().flat_map(|folder| rust_files(folder));
    let offences: Vec<String> = files
        .filter(|path| !read(path).starts_with("//!"))
        .map(|path| path.display().to_string())
        .collect();
    assert_none(&offences, "a file opens with a //! header");
}

#[test]
fn the_server_names_no_state_of_jobs() {
    let words = [
        "JobState",
        "AddJob",
        "GetJob",
        "QueueView",
        "JobView",
        "shard::home",
        "shard::structures",
        "retry_s",
    ];
    let mut offences = Vec::new();
    for path in rust_files("src").into_iter().filter(|path| !is_test(path)) {
        for (line, text) in code(&read(&path)) {
            if words.iter().any(|word| text.contains(word)) {
                offences.push(format!("{}:{line}: {text}", path.display()));
            }
        }
    }
    assert_none(&offences, "src performs effects and decides nothing about jobs");
}

#[test]
fn the_shard_crate_has_no_runtime() {
    let runtimes = [
        "glommio",
        "tokio",
        "mio",
        "io-uring",
        "async-std",
        "smol",
        "libc",
        "rustix",
        "socket2",
    ];
    let manifest = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("shard/Cargo.toml"));
    let offences: Vec<String> = runtimes
        .iter()
        .filter(|name| manifest.contains(&format!("\n{name}")))
        .map(ToString::to_string)
        .collect();
    assert_none(&offences, "crate shard does no I/O");
    let words = [
        "std::net::Tcp",
        "std::fs",
        "std::thread",
        "Instant::now",
        "SystemTime::now",
        "std::io::stdin",
        "unsafe ",
    ];
    let mut offences = Vec::new();
    for path in rust_files("shard/src").into_iter().filter(|path| !is_test(path)) {
        for (line, text) in code(&read(&path)) {
            if words.iter().any(|word| text.contains(word)) {
                offences.push(format!("{}:{line}: {text}", path.display()));
            }
        }
    }
    assert_none(
        &offences,
        "crate shard has no clocks, files, sockets, threads or unsafe code",
    );
}

#[test]
fn the_tools_do_not_know_the_server() {
    let manifest = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/Cargo.toml"));
    let names_server = |line: &&str| line.split(['=', '.', ' ']).next() == Some("shardq");
    assert_eq!(
        manifest.lines().find(names_server),
        None,
        "tools depends on shard and never on the server"
    );
}

#[test]
fn every_command_has_its_file() {
    let names = shard::commands::table::COMMANDS.iter().map(|spec| spec.name);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shard/src/commands");
    let offences: Vec<String> = names
        .filter(|name| !folder.join(format!("{name}.rs")).exists())
        .map(ToString::to_string)
        .collect();
    assert_none(&offences, "one file per command");
}

#[test]
fn files_stay_readable() {
    let folders = ["src", "shard/src", "tools/src"];
    let mut offences = Vec::new();
    for path in folders.iter().flat_map(|folder| rust_files(folder)) {
        let text = read(&path);
        let lines = code(&text).count();
        if lines > 700 {
            offences.push(format!("{}: {lines} lines", path.display()));
        }
    }
    assert_none(
        &offences,
        "a file that grows past what reads well is split along its ideas",
    );
}

#[test]
fn nothing_is_left_undone() {
    let words = ["todo!", "unimplemented!", "dbg!(", "#[ignore", "FIXME", "XXX"];
    let mut offences = Vec::new();
    for path in ["src", "shard", "tools", "benches"]
        .iter()
        .flat_map(|folder| rust_files(folder))
    {
        for (at, text) in read(&path).lines().enumerate() {
            if words.iter().any(|word| text.contains(word)) {
                offences.push(format!("{}:{}: {text}", path.display(), at + 1));
            }
        }
    }
    assert_none(&offences, "no stub is called done");
}

#[test]
fn the_readme_names_every_command_and_setting() {
    let readme = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let commands = shard::commands::table::COMMANDS
        .iter()
        .map(|spec| spec.name.to_uppercase());
    let settings = shard::settings::TABLE
        .iter()
        .map(|setting| setting.name.to_owned());
    let offences: Vec<String> = commands
        .chain(settings)
        .filter(|name| !readme.contains(name.as_str()))
        .collect();
    assert_none(
        &offences,
        "the README has a table of commands and a table of settings",
    );
}

//! A full disk: what needs space is refused with the reason, what frees it goes on, nothing that was confirmed is lost over a kill, and
//! when there is space again it goes on by itself.

use std::collections::BTreeSet;
use std::path::Path;

use tools::client::Client;
use tools::reply::Reply;

use crate::support::tiny_disk::{mount_tiny, resize, unmount, with_mounts};
use crate::support::{Folder, Server, Setup, add, call, end, eventually, info, jobs, restart};

const KILOBYTES: u64 = 3_000;
/// RETRY 0 jobs.
const ONCE: usize = 50;

#[test]
fn a_full_disk_refuses_and_recovers_by_itself() {
    for (fsync, shards) in [("always", 1), ("everysec", 2)] {
        with_mounts(move || {
            let folder = Folder::new();
            let data = folder.path().join("data");
            std::fs::create_dir(&data).expect("the folder is ours");
            mount_tiny(&data, KILOBYTES);
            let setup = Setup::flags(&format!(
                "--shards {shards} --appendonly yes --appendfsync {fsync} --aof-segment-size 65536 \
                 --auto-aof-rewrite-min-size 0 --dir data"
            ));
            fill_and_recover(&setup, folder, &data);
            unmount(&data);
        });
    }
}

/// What was confirmed.
#[derive(Default)]
struct Confirmed {
    /// RETRY 600 jobs.
    jobs: BTreeSet<String>,
    /// Those of them that were acknowledged.
    gone: BTreeSet<String>,
    /// RETRY 0 jobs that were not handed out.
    once: BTreeSet<String>,
}

impl Confirmed {
    fn assert_there(&self, client: &mut Client) {
        for id in &self.jobs {
            let is_there = call(client, &format!("SHOW {id}")) != Reply::Null;
            assert_eq!(is_there, !self.gone.contains(id), "{id}");
        }
        let once = jobs(&call(client, "QPEEK once 1000"));
        assert_eq!(
            once.into_iter().map(|(_, id, _)| id).collect::<BTreeSet<_>>(),
            self.once
        );
    }
}

fn fill_and_recover(setup: &Setup, folder: Folder, data: &Path) {
    let server = restart(setup.clone(), folder);
    let mut client = server.client();
    let mut confirmed = Confirmed::default();
    for number in 0..ONCE {
        confirmed
            .once
            .insert(add(&mut client, &format!("ADDJOB once {number} 0 RETRY 0")));
    }
    fill(&server, &mut confirmed);
    assert!(!confirmed.jobs.is_empty());
    work_while_full(&mut client, &mut confirmed);
    drop(client);

    // Killed while it is full, and started again there.
    let server = restart(setup.clone(), end(server, libc::SIGKILL));
    let mut client = server.client();
    confirmed.assert_there(&mut client);
    // Acknowledgements and compaction make space.
    let left: Vec<String> = confirmed.jobs.difference(&confirmed.gone).cloned().collect();
    for id in left.into_iter().step_by(2) {
        assert_eq!(call(&mut client, &format!("ACKJOB {id}")).integer(), Some(1));
        confirmed.gone.insert(id);
    }
    comes_back(&mut client, &mut confirmed);
    fill(&server, &mut confirmed);
    confirmed.assert_there(&mut client);
    // So does a larger disk.
    resize(data, 3 * KILOBYTES);
    comes_back(&mut client, &mut confirmed);
    let taken = jobs(&call(&mut client, "GETJOB NOHANG FROM once"));
    assert!(confirmed.once.remove(&taken[0].1), "{taken:?}");
    drop(client);

    let server = restart(setup.clone(), end(server, libc::SIGKILL));
    confirmed.assert_there(&mut server.client());
    end(server, libc::SIGTERM);
}

/// Adds jobs until the disk is full, and stays so: compaction may make a little room behind the last refusal.
fn fill(server: &Server, confirmed: &mut Confirmed) {
    eventually("the disk is full", || {
        fill_once(server, confirmed);
        server.info("persistence", "aof_last_write_status") == "err"
    });
}

/// Adds jobs over several connections until each is told that the disk is full.
fn fill_once(server: &Server, confirmed: &mut Confirmed) {
    let producers: Vec<_> = (0..3)
        .map(|number: usize| {
            let mut client = server.client();
            std::thread::spawn(move || {
                let mut added = BTreeSet::new();
                for body_bytes in [3_000, 700, 1] {
                    let body = "x".repeat(body_bytes);
                    for at in 0.. {
                        let queue = format!("q{}", (number + at) % 7);
                        let reply = client.call(&["ADDJOB", &queue, &body, "0", "RETRY", "600"]);
                        let reply = reply.expect("a reply");
                        if let Some(error) = reply.error() {
                            assert_full(error);
                            break;
                        }
                        added.insert(reply.text().expect("an ID").to_owned());
                    }
                }
                added
            })
        })
        .collect();
    for producer in producers {
        confirmed.jobs.extend(producer.join().expect("a producer ends"));
    }
}

fn assert_full(error: &str) {
    assert!(
        error.starts_with("MISCONF ") && error.contains("no space left on the device"),
        "{error}"
    );
}

/// Deliveries and acknowledgements go on, other changes do not.
fn work_while_full(client: &mut Client, confirmed: &mut Confirmed) {
    for queue in 0..7 {
        let taken = jobs(&call(client, &format!("GETJOB NOHANG COUNT 5 FROM q{queue}")));
        assert_eq!(taken.len(), 5);
        use_up(client, &taken[4]);
        for (verb, (_, id, _)) in ["ACKJOB", "FASTACK", "DELJOB", "ACKJOB"].iter().zip(&taken) {
            assert_eq!(call(client, &format!("{verb} {id}")).integer(), Some(1));
            confirmed.gone.insert(id.clone());
        }
    }
    // What was acknowledged may make room again: then one more is handed out.
    let leased = jobs(&call(client, "GETJOB NOHANG FROM q0")).remove(0);
    let refused = (0..ONCE).any(|_| {
        use_up(client, &leased);
        let reply = client
            .call(&["GETJOB", "NOHANG", "FROM", "once"])
            .expect("a reply");
        if let Some(error) = reply.error() {
            assert_full(error);
            return true;
        }
        for (_, id, _) in jobs(&reply) {
            assert!(confirmed.once.remove(&id), "{id} is handed out twice");
        }
        false
    });
    assert!(refused, "a RETRY 0 job is not handed out without a record");
}

/// Gives a job back and takes it again until not even the smallest record has room at its home.
fn use_up(client: &mut Client, (queue, id, _): &(String, String, Vec<u8>)) {
    let refusal = (0..100_000).find_map(|_| {
        let nack = client.call(&["NACK", id]).expect("a reply");
        if nack.integer() == Some(1) {
            let again = jobs(&call(client, &format!("GETJOB NOHANG FROM {queue}")));
            assert_eq!(&again[0].1, id);
        }
        nack.error().map(str::to_owned)
    });
    assert_full(&refusal.expect("a disk is full at some time"));
}

/// It serves again, without any help.
fn comes_back(client: &mut Client, confirmed: &mut Confirmed) {
    eventually("ADDJOB works again", || {
        let reply = client.call(&["ADDJOB", "q0", &"x".repeat(3_000), "0", "RETRY", "600"]);
        let reply = reply.expect("a reply");
        if let Some(error) = reply.error() {
            assert_full(error);
            return false;
        }
        confirmed.jobs.insert(reply.text().expect("an ID").to_owned());
        true
    });
    eventually("the log is well again", || {
        info(client, "persistence", "aof_last_write_status") == "ok"
    });
}

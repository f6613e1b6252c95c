//! What a server holds: every job as JSCAN describes it, and the pause of the queue that is paused now and then.

use std::collections::HashMap;

use tools::client::Client;
use tools::reply::Reply;

use crate::support::call;
use crate::traffic::{At, PAUSED, QUEUES, at};

/// A job as JSCAN describes it, some time between two moments.
#[derive(Clone, Debug)]
pub struct Seen {
    pub sent: At,
    pub received: At,
    pub queue: String,
    pub queued: bool,
    pub nacks: u64,
    /// Milliseconds until it is queued; none: never by itself.
    pub requeued_in_ms: Option<u64>,
    pub body: Vec<u8>,
}

/// All that a server holds.
pub struct Found {
    pub jobs: HashMap<String, Seen>,
    pub pause: String,
    /// When the look ended.
    pub looked_at: At,
}

impl Found {
    pub fn at(client: &mut Client) -> Self {
        let mut jobs = HashMap::new();
        let mut cursor = "0".to_owned();
        loop {
            let sent = at();
            let reply = call(client, &format!("JSCAN {cursor} COUNT 1000000 REPLY all"));
            let received = at();
            let page = reply.array().expect("a cursor and jobs");
            for job in page[1].array().expect("jobs") {
                let (id, seen) = describe(job, sent, received);
                jobs.insert(id, seen);
            }
            cursor = page[0].text().expect("a cursor").to_owned();
            if cursor == "0" {
                break;
            }
        }
        let pause = call(client, &format!("PAUSE {} state", QUEUES[PAUSED]));
        let pause = pause.text().expect("a word").to_owned();
        Self {
            jobs,
            pause,
            looked_at: at(),
        }
    }
}

fn describe(job: &Reply, sent: At, received: At) -> (String, Seen) {
    let fields = job.array().expect("fields");
    let field = |name: &str| {
        let at = fields
            .iter()
            .step_by(2)
            .position(|field| field.text() == Some(name));
        &fields[2 * at.unwrap_or_else(|| panic!("no {name} in {job:?}")) + 1]
    };
    let text = |name: &str| field(name).text().expect("text").to_owned();
    let number = |name: &str| field(name).integer().map(|number| number as u64);
    let state = text("state");
    assert!(state == "queued" || state == "active", "{job:?}");
    let seen = Seen {
        sent,
        received,
        queue: text("queue"),
        queued: state == "queued",
        nacks: number("nacks").expect("a number"),
        requeued_in_ms: number("next-requeue-within"),
        body: field("body").bytes().expect("a body").to_vec(),
    };
    (text("id"), seen)
}

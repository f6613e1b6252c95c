//! What the state machine wants done, and how it is done.

use std::path::Path;

use shard::clock::Now;
use shard::error::CommandError;
use shard::input::{ConnectionId, Effect, Input, Question, Told};
use shard::log::{DiskTask, Done};
use shard::message::Ticket;
use tracing::warn;

use super::{Post, STOP_FLUSH_US, Worker};
use crate::log::{Ahead, Next};
use crate::mesh::Envelope;
use crate::net::Arrival;
use crate::{process, telemetry};

impl Worker {
    /// Performs all effects in their order, and those that follow from them.
    pub(super) fn perform_effects(&mut self, now: Now) {
        let mut effects = std::mem::take(&mut self.effects);
        loop {
            self.shard.take_effects(&mut effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects.drain(..) {
                self.perform(now, effect);
            }
        }
        self.effects = effects;
    }

    fn perform(&mut self, now: Now, effect: Effect) {
        match effect {
            Effect::Send { session } => self.dirty.push(session),
            Effect::Close { session } => self.net.close(session, now.mono_us),
            Effect::Reading { session, on } => self.net.set_reading(session, on),
            Effect::Assign {
                connection,
                client,
                shard,
            } => {
                let arrival = self.placed(connection);
                if shard == self.number {
                    self.connect(now, arrival, client);
                } else {
                    self.mesh.post(shard, Envelope::Arrival { client, arrival });
                }
            }
            Effect::Refuse { connection, reply } => {
                let arrival = self.placed(connection);
                self.net.refuse(arrival, reply, now.mono_us);
            }
            Effect::Ask { ticket, question } => self.answer(ticket, question),
            Effect::Setting { name, value } => self.apply_setting(name, &value),
            Effect::Log { level, text } => telemetry::log(level, &text),
            Effect::StopListening => {
                self.net.stop_listening();
                self.bus.stop_listening();
            }
            Effect::Stopped => self.ends_at_us = Some(now.mono_us + STOP_FLUSH_US),
            Effect::Identity { node, epoch } => self.bus.set_identity(node, epoch),
            Effect::Dial(dial) => {
                self.bus.dial(dial);
            }
            Effect::HangUp { link } => self.bus.hang_up(link),
            Effect::SaveNodes { text } => self.save_nodes(text),
            Effect::Disk { id, task } => self.perform_task(now, id, task),
            Effect::Die { why } => telemetry::die(&why),
            Effect::Crash => std::process::abort(),
        }
    }

    /// Makes the session of a connection that was assigned to this shard.
    pub(super) fn connect(&mut self, now: Now, arrival: Arrival, client: u64) {
        let shard = &mut self.shard;
        self.net
            .adopt(arrival, |peer, local| shard.connect(now, client, peer, local));
    }

    fn placed(&mut self, connection: ConnectionId) -> Arrival {
        self.waiting
            .remove(&connection.0)
            .expect("a connection is placed once, after it was accepted")
    }

    fn answer(&mut self, ticket: Ticket, question: Question) {
        match question {
            Question::Process => {
                let figures = Box::new(process::figures());
                self.posts.post(Post::Told(ticket, Told::Process(figures)));
            }
            Question::RewriteConfig => self.rewrite_config(ticket),
            Question::Folder(path) => {
                let told = Told::Folder(process::check_folder(&path));
                self.posts.post(Post::Told(ticket, told));
            }
        }
    }

    /// Writes the file on the executor's thread for blocking calls: the loop goes on meanwhile.
    fn rewrite_config(&self, ticket: Ticket) {
        let posts = &self.posts;
        let Some(file) = self.config_file.clone() else {
            let error = CommandError::other("The server is running without a config file");
            posts.post(Post::Told(ticket, Told::Rewritten(Err(error))));
            return;
        };
        let settings = self.shard.settings().clone();
        posts.post_result(
            move || file.rewrite(&settings),
            move |written| {
                let told = written.map_err(|error| {
                    warn!("CONFIG REWRITE failed: {error}");
                    CommandError::other(format!("Rewriting config file: {error}"))
                });
                Post::Told(ticket, Told::Rewritten(told))
            },
        );
    }

    /// Replaces `nodes.conf` beside all else.
    fn save_nodes(&self, text: String) {
        let file = self.nodes_file.clone();
        self.posts
            .post_result(move || file.replace(&text), Post::NodesSaved);
    }

    /// Does something with the log's files: at once when it waits for nothing, else on a thread for blocking calls, beside all else. A shard that
    /// has stopped has seen the ends of all its tasks.
    fn perform_task(&mut self, now: Now, id: u64, task: DiskTask) {
        if let Some(next) = self.files.perform_at_once(&task) {
            if let Next::Prepare(ahead) = next {
                self.prepare(ahead);
            }
            let result = Ok(Done::Done);
            self.wrote_at_once = true;
            return self.shard.handle(now, Input::Disk { id, result });
        }
        let (files, ahead) = (self.files.at_present(), Ahead::of(&task));
        self.posts.post_result(
            move || files.perform(task),
            move |result| Post::Disk { id, result, ahead },
        );
    }

    /// Makes ready what the log is written to next, beside all else: nobody waits for that.
    pub(super) fn prepare(&self, ahead: Ahead) {
        let files = self.files.clone();
        glommio::spawn_local(async move {
            glommio::executor()
                .spawn_blocking(move || files.prepare(ahead))
                .await;
        })
        .detach();
    }

    /// Settings of the process are shard 0's; those of sockets are each shard's.
    fn apply_setting(&mut self, name: &str, value: &str) {
        match name {
            "tcp-keepalive" => match value.parse() {
                Ok(keepalive_s) => self.net.set_keepalive(keepalive_s),
                Err(_) => warn!("tcp-keepalive is no number: {value}"),
            },
            "cluster-node-timeout" => match value.parse() {
                Ok(node_timeout_ms) => self.bus.set_node_timeout(node_timeout_ms),
                Err(_) => warn!("cluster-node-timeout is no number: {value}"),
            },
            "loglevel" if self.number == 0 => telemetry::set_level(value),
            "dir" if self.number == 0 => {
                if let Err(error) = std::env::set_current_dir(Path::new(value)) {
                    warn!("cannot change to folder {value}: {error}");
                }
            }
            _ => {}
        }
    }
}

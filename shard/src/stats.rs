//! Counters, gauges and histograms of a shard; parts of INFO, SLOWLOG and LATENCY.
//!
//! Each shard counts for itself, without a look at the others; whoever asks gathers the parts and adds them. Nothing
//! here wakes an idle shard: rates are worked out when they are looked at. `commands` counts commands and their
//! durations, `slowlog` keeps the slow ones, `latency` the slow events, `rates` how much happens at present.

mod commands;
mod latency;
mod rates;
mod recent;
mod slowlog;

use bytes::Bytes;

pub use commands::{CommandNo, CommandStats, CommandTotal};
pub use latency::{LatencyEvent, LatencyMonitor, MAX_SAMPLES, merge_events};
pub use rates::{PerSecond, Rates};
pub use slowlog::{SlowEntry, SlowLog};

use crate::bus::Traffic;
use crate::clock::Now;
use crate::commands::Flags;
use crate::commands::redact;
use crate::commands::table::COMMANDS;
use crate::home;
use crate::settings::Settings;
use crate::slot::ShardNo;
use crate::wire::{Args, Blob};
use recent::Recent;

/// The live figures of a shard.
///
/// The order of calls for a command: [`command_started`](Self::command_started) when it starts; if it ends within the input that
/// brought it, [`settle`](Self::settle) at the end of that input gives it its share of the time; if it waits for something,
/// [`command_waits`](Self::command_waits) at once, and [`command_ended_late`](Self::command_ended_late) when it ended.
#[derive(Debug)]
pub struct Statistics {
    /// What only grows.
    pub counters: Counters,
    /// Commands and their durations.
    pub commands: CommandStats,
    /// Slow commands.
    pub slowlog: SlowLog,
    /// Slow events.
    pub latency: LatencyMonitor,
    /// Requests of the present input, for the slow log.
    recent: Recent,
    rates: Rates,
    peak_bytes: u64,
}

impl Statistics {
    /// Nothing counted yet, on this shard of so many.
    pub fn new(shard: ShardNo, shards: u16) -> Self {
        Self {
            counters: Counters::default(),
            commands: CommandStats::default(),
            slowlog: SlowLog::new(shard, shards),
            latency: LatencyMonitor::new(),
            recent: Recent::default(),
            rates: Rates::default(),
            peak_bytes: 0,
        }
    }

    /// A command starts, by its place in the table.
    pub fn command_started(&mut self, command: u8, args: Args<'_>) {
        self.counters.total_commands_processed += 1;
        self.commands.count(CommandNo(command));
        self.recent.keep(command, args);
    }

    /// The command that started last waits for another shard, for the server, or for time.
    pub fn command_waits(&mut self, command: u8) {
        self.commands.uncount(CommandNo(command));
        self.recent.forget_last();
    }

    /// An input is handled, and that took so long.
    pub fn settle(&mut self, settings: &Settings, now: Now, elapsed_us: u64) {
        let took_us = self.commands.settle(elapsed_us);
        if SlowLog::wants(settings, took_us) {
            for args in self.recent.requests() {
                self.slowlog.enter(settings, now.wall_s(), took_us, args);
            }
        }
        if let Some(command) = self.recent.first_command() {
            self.latency
                .note(settings, event_of(command), now.wall_s(), took_us);
        }
        self.recent.clear();
    }

    /// So many of a command that waited have ended together; `took_us` of each, without the time that it was asked to wait. `args`
    /// as far as they are still known; the name alone will do. The slow log gets one for all.
    pub fn command_ended_late(
        &mut self,
        settings: &Settings,
        now: Now,
        command: u8,
        args: &[Bytes],
        took_us: u64,
        calls: u64,
    ) {
        self.commands.record(CommandNo(command), took_us, calls);
        self.latency
            .note(settings, event_of(command), now.wall_s(), took_us);
        if SlowLog::wants(settings, took_us) {
            let name = COMMANDS[usize::from(command)].name;
            let get = |at: usize| args.get(at).map(|arg| &arg[..]);
            let shown = slowlog::pieces(args.len().max(1), |at| {
                if args.is_empty() {
                    name.as_bytes()
                } else {
                    redact::visible(name, get, at)
                }
            });
            self.slowlog
                .enter(settings, now.wall_s(), took_us, shown.map(Blob::from).collect());
        }
    }

    /// Keeps rates and the peak of memory up to date; to be called once per input, costs two comparisons as a rule.
    pub fn observe(&mut self, now: Now, used_bytes: u64) {
        self.peak_bytes = self.peak_bytes.max(used_bytes);
        self.rates.observe(now.mono_us, self.totals());
    }

    /// A copy for INFO, with what the home of the jobs has counted.
    pub fn snapshot(&mut self, now: Now, gauges: Gauges, home: &home::Counters) -> ShardStats {
        self.observe(now, gauges.used_bytes);
        let gauges = Gauges {
            peak_bytes: self.peak_bytes,
            ..gauges
        };
        let mut counters = self.counters.clone();
        counters.take_home(home);
        ShardStats {
            counters,
            gauges,
            rates: self.rates.mean(),
            commands: self.commands.totals(),
        }
    }

    /// CONFIG RESETSTAT: counters and command statistics; SLOWLOG and LATENCY have their own.
    pub fn reset(&mut self) {
        self.counters = Counters::default();
        self.commands = CommandStats::default();
        self.recent.clear();
        self.rates = Rates::default();
    }

    fn totals(&self) -> PerSecond {
        PerSecond {
            commands: self.counters.total_commands_processed,
            input_bytes: self.counters.total_net_input_bytes,
            output_bytes: self.counters.total_net_output_bytes,
        }
    }
}

/// The latency event of a command.
fn event_of(command: u8) -> &'static str {
    if COMMANDS[usize::from(command)].flags.has(Flags::FAST) {
        "fast-command"
    } else {
        "command"
    }
}

macro_rules! counters {
    ($($name:ident: $meaning:literal,)*) => {
        /// What a shard counts; the names are those of INFO.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $(#[doc = $meaning] pub $name: u64,)*
        }

        impl Counters {
            /// Adds the counts of another shard.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }

            /// Name and value of each, in order.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    total_connections_received: "Connections that became sessions.",
    total_commands_processed: "Commands that ran.",
    total_net_input_bytes: "Bytes received from clients.",
    total_net_output_bytes: "Bytes sent to clients.",
    rejected_connections: "Connections refused for `maxclients`.",
    jobs_added: "Jobs accepted by ADDJOB.",
    jobs_delivered: "Jobs handed out by GETJOB.",
    jobs_acknowledged: "Jobs removed by ACKJOB or FASTACK.",
    jobs_requeued: "Jobs queued again because their lease ended.",
    jobs_nacked: "Jobs queued again by NACK.",
    jobs_enqueued: "Jobs queued by ENQUEUE.",
    jobs_dequeued: "Jobs taken out of their queue by DEQUEUE.",
    jobs_postponed: "Leases made longer by WORKING.",
    jobs_returned: "Jobs handed out that never reached the client, and were brought back.",
    jobs_deleted: "Jobs removed by DELJOB.",
    jobs_flushed: "Jobs removed by DEBUG FLUSHALL.",
    jobs_expired: "Jobs whose time to live ended.",
    jobs_evicted: "Jobs removed to free memory.",
    jobs_added_below_3_copies: "Jobs taken with fewer than three copies, by default.",
    copies_sent: "Copies of jobs sent to other nodes, those sent again included.",
    copies_taken: "Copies of other nodes' jobs taken.",
    copies_refused: "Copies of other nodes' jobs refused.",
    copies_failed: "ADDJOBs that ended without enough copies.",
    jobs_exported: "Jobs sent to consumers at other nodes.",
    jobs_imported: "Jobs that came from other nodes for consumers here.",
    transfers_refused: "Jobs with RETRY 0 that another node had no room for when they came.",
    transfers_in_doubt: "Jobs with RETRY 0 that count as handed out, since the node that they went to lost its memory or was forgotten.",
    jobs_given_away: "Copies dropped because this node leaves and others hold them.",
    jobs_placed_elsewhere: "Jobs added here that other nodes took over because memory was short.",
    jobs_repaired: "Jobs for which other nodes were asked since holders were lost.",
    jobs_acknowledged_elsewhere: "Jobs acknowledged at another node.",
    acks_collected: "Acknowledged jobs that this node found all holders to know of.",
    acks_learnt_late: "Jobs whose acknowledgement was learnt of only when they were to be queued again.",
    queues_collected: "Queues removed because they were idle.",
    clients_timed_out: "Clients closed because they were idle.",
    clients_over_output_limit: "Clients closed because they did not read their replies.",
    evicted_clients: "Clients closed because client buffers took too much of the memory.",
    clients_killed: "Clients ended by CLIENT KILL.",
    monitor_lines_dropped: "Lines that MONITOR left out because they were too many.",
    bus_messages_sent: "Messages to other nodes.",
    bus_messages_received: "Messages of other nodes.",
    bus_bytes_sent: "Bytes to other nodes.",
    bus_bytes_received: "Bytes of other nodes.",
    bus_frames_dropped: "Frames to other nodes that were dropped because their link was down, or too much waited for it.",
    bus_reconnects: "Attempts to connect a link to another node again.",
}

impl Counters {
    /// The first so many stand in the section Stats of the original.
    pub const ORIGINAL: usize = 5;

    /// Adds what went over the bus.
    pub fn add_bus(&mut self, traffic: &Traffic) {
        self.bus_messages_sent += traffic.messages_sent;
        self.bus_messages_received += traffic.messages_received;
        self.bus_bytes_sent += traffic.bytes_sent;
        self.bus_bytes_received += traffic.bytes_received;
        self.bus_frames_dropped += traffic.frames_dropped;
        self.bus_reconnects += traffic.reconnects;
    }

    /// Takes over what the home of the jobs has counted.
    fn take_home(&mut self, home: &home::Counters) {
        self.jobs_added = home.added;
        self.jobs_delivered = home.delivered;
        self.jobs_acknowledged = home.acknowledged + home.fast_acknowledged;
        self.jobs_requeued = home.requeued;
        self.jobs_nacked = home.nacked;
        self.jobs_enqueued = home.enqueued;
        self.jobs_dequeued = home.dequeued;
        self.jobs_postponed = home.postponed;
        self.jobs_returned = home.undelivered_returned;
        self.jobs_deleted = home.deleted;
        self.jobs_flushed = home.flushed;
        self.jobs_expired = home.expired;
        self.jobs_evicted = home.evicted;
        self.jobs_added_below_3_copies = home.added_below_3_copies;
        self.copies_sent = home.copies_sent;
        self.copies_taken = home.copies_taken;
        self.copies_refused = home.copies_refused;
        self.copies_failed = home.copies_failed;
        self.jobs_exported = home.exported;
        self.jobs_imported = home.imported;
        self.transfers_refused = home.transfers_refused;
        self.transfers_in_doubt = home.transfers_in_doubt;
        self.jobs_given_away = home.given_away;
        self.jobs_placed_elsewhere = home.placed_elsewhere;
        self.jobs_repaired = home.repaired;
        self.jobs_acknowledged_elsewhere = home.acknowledged_elsewhere;
        self.acks_collected = home.collected;
        self.acks_learnt_late = home.collected_late;
        self.queues_collected = home.queues_collected;
    }
}

/// How a shard stands at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Sessions.
    pub sessions: u64,
    /// Sessions that wait in a blocking command.
    pub blocked_sessions: u64,
    /// Most output that waits for a client, bytes.
    pub longest_output_bytes: u64,
    /// Most input that waits in a session, bytes.
    pub biggest_input_bytes: u64,
    /// Jobs, whatever their state.
    pub jobs: u64,
    /// Jobs in their queues.
    pub queued_jobs: u64,
    /// Acknowledged jobs that other nodes have not all heard of; not among the jobs.
    pub acked_jobs: u64,
    /// Of the jobs, those with RETRY 0 on their way to another node.
    pub jobs_in_transfer: u64,
    /// Answers about such jobs of other nodes, until those nodes know them.
    pub transfer_answers: u64,
    /// ADDJOBs that wait for copies.
    pub adding_jobs: u64,
    /// Jobs that were to have several copies, all of which lie on this node's host.
    pub jobs_on_one_host: u64,
    /// Queues, empty ones included.
    pub queues: u64,
    /// Bytes that count against `maxmemory`.
    pub used_bytes: u64,
    /// The most there ever were, as far as inputs saw; filled in by [`Statistics::snapshot`].
    pub peak_bytes: u64,
    /// The log.
    pub log: LogGauges,
}

/// What there is of a shard's log; the node's, when added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogGauges {
    /// `on`, `wait-rewrite` or `off`; shard 0 knows.
    pub state: Option<&'static str>,
    /// A start that is under way.
    pub loading: Option<Loading>,
    /// Bytes of all records.
    pub bytes: u64,
    /// Bytes that what lives would take in a log.
    pub live_bytes: u64,
    /// Bytes that are not written yet.
    pub pending_bytes: u64,
    /// Answers that wait for the log.
    pub waiting_answers: u64,
    /// Shards whose log is being compacted.
    pub compacting: u64,
    /// Segments that compaction has removed.
    pub segments_removed: u64,
    /// Shards that cannot write.
    pub failing: u64,
}

/// How far the log is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loading {
    /// When it began, seconds since 1970.
    pub started_s: u64,
    /// Bytes to be read.
    pub total_bytes: u64,
    /// Bytes that are read.
    pub loaded_bytes: u64,
}

impl LogGauges {
    fn add(&mut self, other: &Self) {
        self.state = self.state.or(other.state);
        self.loading = match (self.loading, other.loading) {
            (Some(a), Some(b)) => Some(Loading {
                started_s: a.started_s.min(b.started_s),
                total_bytes: a.total_bytes + b.total_bytes,
                loaded_bytes: a.loaded_bytes + b.loaded_bytes,
            }),
            (a, b) => a.or(b),
        };
        self.bytes += other.bytes;
        self.live_bytes += other.live_bytes;
        self.pending_bytes += other.pending_bytes;
        self.waiting_answers += other.waiting_answers;
        self.compacting += other.compacting;
        self.segments_removed += other.segments_removed;
        self.failing += other.failing;
    }
}

impl Gauges {
    /// Adds another shard's: sums, and the largest of what is a largest.
    pub fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.blocked_sessions += other.blocked_sessions;
        self.longest_output_bytes = self.longest_output_bytes.max(other.longest_output_bytes);
        self.biggest_input_bytes = self.biggest_input_bytes.max(other.biggest_input_bytes);
        self.jobs += other.jobs;
        self.queued_jobs += other.queued_jobs;
        self.acked_jobs += other.acked_jobs;
        self.jobs_in_transfer += other.jobs_in_transfer;
        self.transfer_answers += other.transfer_answers;
        self.adding_jobs += other.adding_jobs;
        self.jobs_on_one_host += other.jobs_on_one_host;
        self.queues += other.queues;
        self.used_bytes += other.used_bytes;
        self.peak_bytes += other.peak_bytes;
        self.log.add(&other.log);
    }
}

/// A shard's part of INFO; the node's, when added up.
#[derive(Clone, Debug, Default)]
pub struct ShardStats {
    /// Counters.
    pub counters: Counters,
    /// Gauges.
    pub gauges: Gauges,
    /// What happens at present, per second.
    pub rates: PerSecond,
    /// Calls and time of each command, by its number.
    pub commands: Vec<CommandTotal>,
}

impl ShardStats {
    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        self.counters.add(&other.counters);
        self.gauges.add(&other.gauges);
        self.rates.add(&other.rates);
        commands::add_totals(&mut self.commands, &other.commands);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::table;
    use crate::commands::testing::with_args;

    fn blobs(texts: &[&str]) -> Vec<Blob> {
        texts.iter().map(|text| Blob::from(*text)).collect()
    }

    fn now(mono_us: u64) -> Now {
        Now {
            mono_us,
            wall_us: 1_700_000_000_000_000,
        }
    }

    #[test]
    fn parts_add_up() {
        let mut stats = Statistics::new(0, 2);
        stats.observe(now(0), 9);
        stats.counters.total_commands_processed = 160;
        let gauges = Gauges {
            jobs: 3,
            longest_output_bytes: 7,
            ..Gauges::default()
        };
        let home = home::Counters {
            added: 3,
            ..home::Counters::default()
        };
        let mut node = stats.snapshot(now(1_600_000), gauges, &home);
        let other = ShardStats {
            gauges: Gauges {
                jobs: 1,
                longest_output_bytes: 5,
                ..Gauges::default()
            },
            counters: Counters {
                jobs_added: 2,
                ..Counters::default()
            },
            ..ShardStats::default()
        };
        node.add(&other);
        assert_eq!(node.counters.jobs_added, 5);
        assert_eq!(node.gauges.jobs, 4);
        assert_eq!(node.gauges.longest_output_bytes, 7);
        assert_eq!(node.gauges.peak_bytes, 9);
        assert_eq!(node.rates.commands, 100);
        stats.reset();
        assert_eq!(stats.counters, Counters::default());
    }

    #[test]
    fn counters_are_named_as_info_names_them() {
        let pairs = Counters {
            rejected_connections: 9,
            ..Counters::default()
        }
        .pairs();
        assert_eq!(pairs[Counters::ORIGINAL - 1], ("rejected_connections", 9));
        assert_eq!(pairs[0].0, "total_connections_received");
    }

    #[test]
    fn slow_commands_of_an_input_are_entered_without_secrets() {
        let settings = Settings {
            latency_threshold_ms: 1,
            ..Settings::default()
        };
        let mut stats = Statistics::new(0, 1);
        let start = |stats: &mut Statistics, request: &[&str]| {
            let command = table::find(request[0].as_bytes()).expect("a command");
            with_args(request, |args| stats.command_started(command, args));
            command
        };
        start(&mut stats, &["AUTH", "secret"]);
        start(&mut stats, &["PING"]);
        let waits = start(&mut stats, &["INFO"]);
        stats.command_waits(waits);
        stats.settle(&settings, now(0), 40_000);
        let entries = stats.slowlog.newest(9);
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].args, blobs(&["PING"]));
        assert_eq!(entries[1].args, blobs(&["AUTH", "(redacted)"]));
        assert_eq!(entries[0].took_us, 20_000);
        assert_eq!(stats.latency.events()[0].latest(), (1_700_000_000, 20));
        stats.settle(&settings, now(0), 40_000);
        assert_eq!(stats.slowlog.len(), 2, "an input is settled once");
        let args = [Bytes::from("INFO"), Bytes::from("all")];
        stats.command_ended_late(&settings, now(0), waits, &args, 12_000, 1);
        assert_eq!(stats.slowlog.newest(1)[0].args, blobs(&["INFO", "all"]));
        assert_eq!(stats.commands.totals()[usize::from(waits)].calls, 1);
    }
}

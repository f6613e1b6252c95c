//! The text of INFO, made of figures that are at hand.

use std::fmt::Write;

use crate::bus::{PeerState, Peers};
use crate::clock::Now;
use crate::commands::table::COMMANDS;
use crate::input::ProcessFigures;
use crate::settings::Settings;
use crate::shard::NodeFacts;
use crate::stats::{Counters, ShardStats};

/// All that the text is made of.
pub(super) struct Report<'a> {
    facts: &'a NodeFacts,
    settings: &'a Settings,
    now: Now,
    /// All shards together.
    node: ShardStats,
    shards: &'a [ShardStats],
    process: ProcessFigures,
    peers: &'a Peers,
}

/// Writes a section's fields.
type Section = fn(&Report<'_>, &mut String);

const SECTIONS: &[(&str, Section)] = &[
    ("Server", |report, text| report.server(text)),
    ("Clients", |report, text| report.clients(text)),
    ("Memory", |report, text| report.memory(text)),
    ("Jobs", |report, text| report.jobs(text)),
    ("Queues", |report, text| report.queues(text)),
    ("Persistence", |report, text| report.persistence(text)),
    ("Stats", |report, text| report.stats(text)),
    ("CPU", |report, text| report.cpu(text)),
    ("Commandstats", |report, text| report.commandstats(text)),
    ("Shards", |report, text| report.shards(text)),
    ("Cluster", |report, text| report.cluster(text)),
];

/// Writes `name:value` lines; the value of each is an expression.
macro_rules! fields {
    ($text:ident, $($name:ident: $value:expr),* $(,)?) => {
        $(field($text, stringify!($name), &$value);)*
    };
}

fn field(text: &mut String, name: &str, value: &dyn std::fmt::Display) {
    write!(text, "{name}:{value}\r\n").expect("memory takes what is written");
}

impl<'a> Report<'a> {
    pub fn new(
        facts: &'a NodeFacts,
        settings: &'a Settings,
        now: Now,
        shards: &'a [ShardStats],
        process: ProcessFigures,
        peers: &'a Peers,
    ) -> Self {
        let mut node = ShardStats::default();
        shards.iter().for_each(|shard| node.add(shard));
        Self {
            facts,
            settings,
            now,
            node,
            shards,
            process,
            peers,
        }
    }

    /// As the shard sees it that was asked: a node is reachable when its own link is up.
    fn cluster(&self, text: &mut String) {
        let count = |state| self.peers.all().filter(|peer| peer.state == state).count();
        let (alive, suspect, failed) = (
            count(PeerState::Alive),
            count(PeerState::Suspect),
            count(PeerState::Failed),
        );
        fields!(text,
            cluster_node_id: self.peers.node,
            cluster_size: 1 + alive + suspect + failed,
            cluster_reachable_nodes: self.peers.reachable_count(),
            cluster_suspected_nodes: suspect,
            cluster_failed_nodes: failed,
            cluster_leaving: u8::from(self.peers.leaving),
            cluster_store_epoch: self.peers.epoch,
            cluster_host: format!("{:016x}", self.peers.host),
            cluster_zone: format!("{:016x}", self.peers.zone),
            cluster_reachable_hosts: self.peers.hosts(),
        );
    }

    /// The sections that `section` (lowercase) asks for.
    pub fn text(&self, section: &str) -> String {
        let mut text = String::new();
        for (name, write) in SECTIONS {
            let is_wanted = match section {
                "all" | "everything" => true,
                "default" => *name != "Commandstats",
                one => name.eq_ignore_ascii_case(one),
            };
            if is_wanted {
                let blank = if text.is_empty() { "" } else { "\r\n" };
                text.push_str(&format!("{blank}# {name}\r\n"));
                write(self, &mut text);
            }
        }
        text
    }

    fn server(&self, text: &mut String) {
        let facts = self.facts;
        let uptime_s = self.now.mono_us / 1_000_000;
        fields!(text,
            disque_version: facts.version,
            disque_git_sha1: "00000000",
            disque_git_dirty: 0,
            disque_build_id: 0,
            os: facts.os,
            arch_bits: usize::BITS,
            multiplexing_api: "io_uring",
            gcc_version: "0.0.0",
            process_id: facts.process_id,
            run_id: facts.run_id,
            tcp_port: self.settings.port,
            uptime_in_seconds: uptime_s,
            uptime_in_days: uptime_s / (24 * 3600),
            hz: self.settings.get("hz").unwrap_or_default(),
            executable: facts.executable,
            config_file: facts.config_file,
            server_name: "shardq",
            shards: self.shards.len(),
        );
    }

    fn clients(&self, text: &mut String) {
        let gauges = &self.node.gauges;
        fields!(text,
            connected_clients: gauges.sessions,
            client_longest_output_list: gauges.longest_output_bytes,
            client_biggest_input_buf: gauges.biggest_input_bytes,
            blocked_clients: gauges.blocked_sessions,
            maxclients: self.settings.maxclients,
        );
    }

    fn memory(&self, text: &mut String) {
        let gauges = &self.node.gauges;
        let resident_bytes = self.process.resident_bytes;
        let ratio = resident_bytes as f64 / gauges.used_bytes.max(1) as f64;
        fields!(text,
            used_memory: gauges.used_bytes,
            used_memory_human: human(gauges.used_bytes),
            used_memory_rss: resident_bytes,
            used_memory_peak: gauges.peak_bytes,
            used_memory_peak_human: human(gauges.peak_bytes),
            mem_fragmentation_ratio: format!("{ratio:.2}"),
            mem_allocator: "libc",
            maxmemory: self.settings.maxmemory,
            maxmemory_human: human(self.settings.maxmemory),
            maxmemory_policy: self.settings.maxmemory_policy,
        );
    }

    fn jobs(&self, text: &mut String) {
        let gauges = &self.node.gauges;
        fields!(text,
            registered_jobs: gauges.jobs,
            queued_jobs: gauges.queued_jobs,
            acked_jobs: gauges.acked_jobs,
            adding_jobs: gauges.adding_jobs,
            jobs_on_one_host: gauges.jobs_on_one_host,
            jobs_in_transfer: gauges.jobs_in_transfer,
            transfer_answers: gauges.transfer_answers,
        );
    }

    fn queues(&self, text: &mut String) {
        fields!(text, registered_queues: self.node.gauges.queues);
    }

    /// Compaction goes on in steps: it has no duration and no end that could fail, and is never put off.
    fn persistence(&self, text: &mut String) {
        let log = &self.node.gauges.log;
        let state = log.state.unwrap_or("off");
        fields!(text,
            loading: u8::from(log.loading.is_some()),
            aof_enabled: u8::from(self.settings.appendonly),
            aof_state: state,
            aof_rewrite_in_progress: u8::from(log.compacting > 0),
            aof_rewrite_scheduled: 0,
            aof_last_rewrite_time_sec: -1,
            aof_current_rewrite_time_sec: -1,
            aof_last_bgrewrite_status: "ok",
            aof_last_write_status: if log.failing > 0 { "err" } else { "ok" },
        );
        if state != "off" {
            fields!(text,
                aof_current_size: log.bytes,
                aof_base_size: log.live_bytes,
                aof_pending_rewrite: 0,
                aof_buffer_length: log.pending_bytes,
                aof_rewrite_buffer_length: 0,
                aof_pending_bio_fsync: log.waiting_answers,
                aof_delayed_fsync: 0,
                aof_segments_removed: log.segments_removed,
            );
        }
        if let Some(loading) = log.loading {
            let loaded = loading.loaded_bytes.min(loading.total_bytes);
            let elapsed_s = self.now.wall_s().saturating_sub(loading.started_s);
            let left_s = (loading.total_bytes - loaded) * elapsed_s / loaded.max(1);
            fields!(text,
                loading_start_time: loading.started_s,
                loading_total_bytes: loading.total_bytes,
                loading_loaded_bytes: loaded,
                loading_loaded_perc: loaded * 100 / loading.total_bytes.max(1),
                loading_eta_seconds: left_s,
            );
        }
    }

    fn stats(&self, text: &mut String) {
        let (pairs, rates) = (self.node.counters.pairs(), &self.node.rates);
        let of = |name: &str| {
            pairs
                .iter()
                .find(|(of, _)| *of == name)
                .map_or(0, |(_, value)| *value)
        };
        let kbps = |bytes: u64| format!("{:.2}", bytes as f64 / 1024.0);
        fields!(text,
            total_connections_received: of("total_connections_received"),
            total_commands_processed: of("total_commands_processed"),
            instantaneous_ops_per_sec: rates.commands,
            total_net_input_bytes: of("total_net_input_bytes"),
            total_net_output_bytes: of("total_net_output_bytes"),
            instantaneous_input_kbps: kbps(rates.input_bytes),
            instantaneous_output_kbps: kbps(rates.output_bytes),
            rejected_connections: of("rejected_connections"),
            latest_fork_usec: 0,
        );
        for (name, value) in &pairs[Counters::ORIGINAL..] {
            field(text, name, value);
        }
    }

    fn cpu(&self, text: &mut String) {
        fields!(text,
            used_cpu_sys: format!("{:.2}", self.process.cpu_system_s),
            used_cpu_user: format!("{:.2}", self.process.cpu_user_s),
            used_cpu_sys_children: "0.00",
            used_cpu_user_children: "0.00",
        );
    }

    fn commandstats(&self, text: &mut String) {
        for (total, spec) in self
            .node
            .commands
            .iter()
            .zip(COMMANDS)
            .filter(|(total, _)| total.calls > 0)
        {
            let (calls, took_us) = (total.calls, total.took_us());
            let each_us = total.took_ns as f64 / 1000.0 / calls as f64;
            let value = format!("calls={calls},usec={took_us},usec_per_call={each_us:.2}");
            field(text, &format!("cmdstat_{}", spec.name), &value);
        }
    }

    fn shards(&self, text: &mut String) {
        for (number, shard) in self.shards.iter().enumerate() {
            let gauges = &shard.gauges;
            let value = format!(
                "sessions={},jobs={},queues={},used_memory={},commands={},ops_per_sec={}",
                gauges.sessions,
                gauges.jobs,
                gauges.queues,
                gauges.used_bytes,
                shard.counters.total_commands_processed,
                shard.rates.commands
            );
            field(text, &format!("shard{number}"), &value);
        }
    }
}

/// Bytes with a unit and two decimals, as Redis writes them.
fn human(bytes: u64) -> String {
    let units = [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{:.2}{unit}", bytes as f64 / *size as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::stats::{CommandTotal, Gauges};

    fn report(section: &str) -> String {
        let facts = NodeFacts {
            version: "0.1.0".to_owned(),
            process_id: 7,
            ..NodeFacts::default()
        };
        let shard = ShardStats {
            gauges: Gauges {
                sessions: 2,
                jobs: 5,
                queues: 1,
                used_bytes: 1536,
                ..Gauges::default()
            },
            commands: vec![
                CommandTotal::default(),
                CommandTotal {
                    calls: 4,
                    took_ns: 10_000,
                },
            ],
            ..ShardStats::default()
        };
        let now = Now {
            mono_us: 90_000_000_000,
            wall_us: 0,
        };
        let process = ProcessFigures {
            resident_bytes: 6144,
            cpu_system_s: 1.5,
            cpu_user_s: 0.25,
        };
        let settings = Settings::default();
        let peers = Peers::new(NodeId::from_bytes([1; 20]));
        Report::new(&facts, &settings, now, &[shard.clone(), shard], process, &peers).text(section)
    }

    fn names(section: &str) -> Vec<String> {
        let text = report(section);
        text.lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// The fields of the reference, 10.1, in order.
    #[test]
    fn the_fields_of_the_original_come_first() {
        for (section, fields) in [
            (
                "server",
                "disque_version disque_git_sha1 disque_git_dirty disque_build_id os arch_bits multiplexing_api gcc_version \
                 process_id run_id tcp_port uptime_in_seconds uptime_in_days hz executable config_file",
            ),
            (
                "clients",
                "connected_clients client_longest_output_list client_biggest_input_buf blocked_clients",
            ),
            (
                "memory",
                "used_memory used_memory_human used_memory_rss used_memory_peak used_memory_peak_human \
                 mem_fragmentation_ratio mem_allocator",
            ),
            ("jobs", "registered_jobs"),
            ("queues", "registered_queues"),
            (
                "persistence",
                "loading aof_enabled aof_state aof_rewrite_in_progress aof_rewrite_scheduled aof_last_rewrite_time_sec \
                 aof_current_rewrite_time_sec aof_last_bgrewrite_status aof_last_write_status",
            ),
            (
                "stats",
                "total_connections_received total_commands_processed instantaneous_ops_per_sec total_net_input_bytes \
                 total_net_output_bytes instantaneous_input_kbps instantaneous_output_kbps rejected_connections latest_fork_usec",
            ),
            (
                "cpu",
                "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children",
            ),
        ] {
            let expected: Vec<&str> = fields.split_whitespace().collect();
            assert_eq!(names(section)[..expected.len()], expected, "{section}");
        }
    }

    #[test]
    fn values() {
        assert_eq!(
            report("jobs"),
            "# Jobs\r\nregistered_jobs:10\r\nqueued_jobs:0\r\nacked_jobs:0\r\nadding_jobs:0\r\njobs_on_one_host:0\r\n\
             jobs_in_transfer:0\r\ntransfer_answers:0\r\n"
        );
        assert_eq!(
            report("commandstats"),
            "# Commandstats\r\ncmdstat_ping:calls=8,usec=20,usec_per_call=2.50\r\n"
        );
        assert_eq!(
            report("shards").lines().nth(1),
            Some("shard0:sessions=2,jobs=5,queues=1,used_memory=1536,commands=0,ops_per_sec=0")
        );
        let memory = report("memory");
        assert!(memory.contains("used_memory_human:3.00K\r\n"));
        assert!(memory.contains("mem_fragmentation_ratio:2.00\r\n"));
        assert!(report("server").contains("uptime_in_seconds:90000\r\nuptime_in_days:1\r\nhz:10\r\n"));
        assert!(report("stats").contains("latest_fork_usec:0\r\njobs_added:0\r\n"));
    }

    #[test]
    fn sections() {
        let headings = |section: &str| report(section).matches("# ").count();
        assert_eq!(headings("all"), SECTIONS.len());
        assert_eq!(headings("everything"), SECTIONS.len());
        assert_eq!(headings("default"), SECTIONS.len() - 1);
        assert!(!report("default").contains("# Commandstats"));
        assert!(
            report("default").contains("\r\n\r\n# Clients\r\n"),
            "a blank line between sections"
        );
        assert_eq!(report("nonsense"), "");
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(human(0), "0B");
        assert_eq!(human(1023), "1023B");
        assert_eq!(human(1 << 20), "1.00M");
        assert_eq!(human(1 << 30), "1.00G");
    }
}

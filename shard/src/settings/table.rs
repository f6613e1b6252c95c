//! The table of all settings, in the order in which CONFIG GET and the help list them.

use super::kind::{Field, Form, Kind};
use super::{Access, Setting};
use crate::limits::{HOST_BYTES, MAX_SHARDS};

macro_rules! field {
    ($name:ident) => {
        Field {
            get: |settings| &settings.$name,
            get_mut: |settings| &mut settings.$name,
        }
    };
}

const FILE: Access = Access::File;
const G: Access = Access::Get;
const GS: Access = Access::GetSet;

const PATH: usize = 4096;

const fn row(name: &'static str, kind: Kind, access: Access, meaning: &'static str) -> Setting {
    Setting {
        name,
        kind,
        access,
        meaning,
    }
}

const fn ignored(
    name: &'static str,
    form: Form,
    default: &'static str,
    access: Access,
    why: &'static str,
) -> Setting {
    Setting {
        name,
        kind: Kind::Ignored { form, default },
        access,
        meaning: why,
    }
}

/// All settings.
#[rustfmt::skip]
pub static TABLE: &[Setting] = &[
    // Network.
    row("port", Kind::Integer(field!(port), 0, 65_535), G, "TCP port for clients; 0: none"),
    row("bind", Kind::Addresses(field!(bind)), G, "addresses to listen on; * is every IPv4 address"),
    row("tcp-backlog", Kind::Integer(field!(tcp_backlog), 1, 65_535), G, "connections that the kernel keeps until they are accepted"),
    row("sockets", Kind::Word(field!(sockets), &["auto", "ring", "glommio"]), G, "how sockets are served: by a ring of each shard's own (Linux 6.1 or later), or by glommio, at a multiple of the CPU when requests come one at a time; auto: by rings where the kernel can"),
    row("unixsocket", Kind::Text(field!(unixsocket), 107), G, "path of a Unix socket for clients"),
    row("unixsocketperm", Kind::Octal(field!(unixsocketperm)), G, "permissions of the Unix socket; 0: those of the process"),
    row("timeout", Kind::Integer(field!(timeout_s), 0, i32::MAX as u64), GS, "seconds after which an idle client is closed; 0: never"),
    row("tcp-keepalive", Kind::KeepAlive(field!(tcp_keepalive_s)), GS, "seconds of silence after which a client's connection is probed; no: never"),
    row("maxclients", Kind::Integer(field!(maxclients), 1, 1_000_000), GS, "clients at a time"),
    row("client-output-buffer-limit", Kind::OutputLimit(field!(output_limit)), GS, "unread output above which a client is closed: at once, or after some seconds; 0: no limit"),
    row("requirepass", Kind::Password(field!(requirepass)), GS, "password that clients must give"),
    row("rename-command", Kind::Renames(field!(renamed_commands)), FILE, "gives a command another name, or takes it away"),

    // Process.
    row("shards", Kind::Integer(field!(shards), 0, MAX_SHARDS as u64), G, "shards, a thread each; 0: one for each CPU"),
    row("cpus", Kind::Text(field!(cpus), PATH), G, "CPUs to run on, like 0-3,8; empty: all that the process may use"),
    row("dir", Kind::Text(field!(dir), PATH), GS, "working folder; empty: the one of the start"),
    row("pidfile", Kind::Text(field!(pidfile), PATH), G, "file that holds the process ID while the server runs"),
    row("loglevel", Kind::Word(field!(loglevel), &["debug", "verbose", "notice", "warning"]), GS, "how much is logged"),
    row("logfile", Kind::Text(field!(logfile), PATH), G, "file of the server's log; empty: standard error"),
    row("include", Kind::Reader, FILE, "another file of settings to read at this place"),
    row("enable-debug-command", Kind::YesNo(field!(enable_debug_command)), G, "whether DEBUG may end the process"),
    ignored("daemonize", Form::YesNo, "no", G, "no meaning: the server stays in the foreground, leave it to a service manager"),
    ignored("syslog-enabled", Form::YesNo, "no", FILE, "no meaning: the log goes to standard error or a file"),
    ignored("syslog-ident", Form::Text, "disque", FILE, "no meaning: the log goes to standard error or a file"),
    ignored("syslog-facility", Form::Text, "local0", G, "no meaning: the log goes to standard error or a file"),

    // Memory.
    row("maxmemory", Kind::Memory(field!(maxmemory), 0), GS, "bytes of jobs, queues and client buffers; 0: no limit"),
    row("maxmemory-policy", Kind::Word(field!(maxmemory_policy), &["acks", "noeviction"]), GS, "acks: evict acknowledged and delivered at-most-once jobs when memory is used up"),
    ignored("maxmemory-samples", Form::Integer(1, u32::MAX as u64), "5", GS, "no meaning: eviction does not sample"),

    // Measuring.
    row("slowlog-log-slower-than", Kind::Signed(field!(slowlog_slower_than_us)), GS, "microseconds from which a command enters the slow log; 0: all do; negative: none does"),
    row("slowlog-max-len", Kind::Integer(field!(slowlog_max_len), 0, 1_000_000), GS, "entries of the slow log, for each shard"),
    row("latency-monitor-threshold", Kind::Integer(field!(latency_threshold_ms), 0, u32::MAX as u64), GS, "milliseconds from which an event is kept for LATENCY; 0: none is"),

    // Disk.
    row("appendonly", Kind::YesNo(field!(appendonly)), GS, "whether what is acknowledged is kept on disk"),
    row("save", Kind::Fixed("", "there are no snapshots to save"), GS, "always empty: asked for by tools made for Redis"),
    row("appendfsync", Kind::Word(field!(appendfsync), &["always", "everysec", "no"]), GS, "when what was written to the log is synced"),
    ignored("appendfilename", Form::Text, "disque.aof", FILE, "no meaning: the log is a folder of segments for each generation"),
    ignored("no-appendfsync-on-rewrite", Form::YesNo, "no", G, "no meaning: compaction does not hold up syncs"),
    row("auto-aof-rewrite-percentage", Kind::Integer(field!(aof_rewrite_percentage), 0, i32::MAX as u64), GS, "how much larger than what lives in it the log may become; 0: never compacted by itself"),
    row("auto-aof-rewrite-min-size", Kind::Memory(field!(aof_rewrite_min_bytes), 0), GS, "bytes of the log below which it is not compacted by itself"),
    ignored("aof-rewrite-incremental-fsync", Form::YesNo, "yes", GS, "no meaning: the log is always compacted in small steps"),
    row("aof-load-truncated", Kind::YesNo(field!(aof_load_truncated)), GS, "whether a torn tail of the log is cut at the start"),
    row("aof-segment-size", Kind::Memory(field!(aof_segment_bytes), 64 << 10), G, "bytes of a segment of the log"),
    ignored("aof-enqueue-jobs-once", Form::YesNo, "no", GS, "no meaning: a job handed out at most once is never handed out again by a restart"),

    // Cluster.
    row("cluster-config-file", Kind::Text(field!(cluster_config_file), PATH), FILE, "file that keeps the node's ID, and the nodes it knows"),
    row("announce-host", Kind::Host(field!(announce_host)), GS, "address or host name that clients and nodes are told; empty: as connections have it"),
    row("announce-port", Kind::Integer(field!(announce_port), 0, 65_535), GS, "port that clients are told; 0: port"),
    row("announce-bus-port", Kind::Integer(field!(announce_bus_port), 0, 65_535), GS, "port that nodes are told; 0: the one of the bus"),
    row("host-id", Kind::Text(field!(host_id), HOST_BYTES), G, "machine it runs on: copies of a job go to different ones; empty: as the machine says"),
    row("zone", Kind::Text(field!(zone), HOST_BYTES), G, "zone it runs in: copies of a job go to different ones where hosts do not tell; empty: none"),
    row("cluster-node-timeout", Kind::Integer(field!(cluster_node_timeout_ms), 1, i32::MAX as u64), GS, "milliseconds of silence after which another node is failed"),
    row("repair-after", Kind::Integer(field!(repair_after_s), 0, i32::MAX as u64), GS, "seconds after which the jobs of a failed node are copied elsewhere"),
    row("rejoin-wait", Kind::Integer(field!(rejoin_wait_ms), 0, 3_600_000), GS, "milliseconds that a node may take to say which jobs it still has"),
    row("min-replicate", Kind::Integer(field!(min_replicate), 1, 65_535), GS, "copies below which an ADDJOB without REPLICATE is refused"),
    row("bus-port", Kind::Integer(field!(bus_port), 0, 65_535), G, "TCP port for other nodes; 0: client port + 10000"),
    row("bus-bind", Kind::Addresses(field!(bus_bind)), G, "addresses to listen on for other nodes; empty: those of bind, and without cluster-secret only loopback"),
    row("cluster-secret", Kind::Password(field!(cluster_secret)), G, "what the nodes of a cluster prove to each other; the same on all"),

    // Of the original, without an equal here.
    ignored("hz", Form::Integer(0, i32::MAX as u64), "10", GS, "no meaning: timers are exact, nothing is swept"),
    ignored("databases", Form::Integer(1, i32::MAX as u64), "16", G, "no meaning: there is one database"),
    ignored("activerehashing", Form::YesNo, "yes", GS, "no meaning: tables grow step by step"),
    ignored("watchdog-period", Form::Integer(0, i32::MAX as u64), "0", GS, "no meaning: there is no watchdog"),
];

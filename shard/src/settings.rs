//! Settings: what can be given in the configuration file, on the command line, and by CONFIG SET.
//!
//! One table ([`TABLE`]) says for each its name, its form, whether CONFIG GET and CONFIG SET know it, and what it
//! means; [`Settings`] holds the parsed values, so that what is looked at for every command costs a field access. The
//! names are those of the original (reference, 10.2). Those that have no meaning here are accepted, kept and shown, and
//! whoever sets one is told so: [`Setting::ignored`].
//!
//! Chosen unlike the original: `bind` is the local address (nobody opens a broker to the world by forgetting a line),
//! `tcp-keepalive` is 300 s (as Redis since 3.2; 0 leaves dead peers for ever) and `client-output-buffer-limit` is bounded.

mod kind;
mod table;

use std::collections::BTreeMap;

use thiserror::Error;

pub use kind::{Kind, OutputLimit};
pub use table::TABLE;

use crate::error::CommandError;

/// How far the bus port is from the client port unless `bus-port` says otherwise (as in the original).
pub const BUS_PORT_DISTANCE: u16 = 10_000;

/// The values of all settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// TCP port for clients; 0: none.
    pub port: u64,
    /// Connections that the kernel keeps until they are accepted.
    pub tcp_backlog: u64,
    /// How sockets are served: `auto`, `ring` or `glommio`.
    pub sockets: &'static str,
    /// Addresses to listen on; `*` is every IPv4 address.
    pub bind: Vec<String>,
    /// Path of the Unix socket; empty: none.
    pub unixsocket: String,
    /// Permissions of the Unix socket; 0: those of the process.
    pub unixsocketperm: u64,
    /// Seconds after which an idle client is closed; 0: never.
    pub timeout_s: u64,
    /// Seconds of silence after which a client's connection is probed; 0: never.
    pub tcp_keepalive_s: u64,
    /// How much is logged: `debug`, `verbose`, `notice` or `warning`.
    pub loglevel: &'static str,
    /// File of the server's log; empty: standard error.
    pub logfile: String,
    /// File that holds the process ID while the server runs; empty: none.
    pub pidfile: String,
    /// Working folder; empty: the one the server was started in.
    pub dir: String,
    /// Whether what is acknowledged is kept on disk.
    pub appendonly: bool,
    /// When what was written to the log is synced: `always`, `everysec` or `no`.
    pub appendfsync: &'static str,
    /// How much larger than what lives in it the log may become, percent; 0: it is never compacted by itself.
    pub aof_rewrite_percentage: u64,
    /// Bytes of the node's log below which it is not compacted by itself.
    pub aof_rewrite_min_bytes: u64,
    /// Whether a torn tail of the log may be cut at the start.
    pub aof_load_truncated: bool,
    /// Bytes of a segment of the log.
    pub aof_segment_bytes: u64,
    /// File that keeps the node's ID, and the nodes it knows.
    pub cluster_config_file: String,
    /// Port of the bus between nodes; 0: `port` and [`BUS_PORT_DISTANCE`].
    pub bus_port: u64,
    /// Addresses of the bus; empty: those of `bind`, and without a secret only those that no other machine reaches.
    pub bus_bind: Vec<String>,
    /// What nodes prove to each other.
    pub cluster_secret: Option<Vec<u8>>,
    /// Address or host name that clients and other nodes are told; empty: as connections have it.
    pub announce_host: String,
    /// Port that clients are told; 0: `port`.
    pub announce_port: u64,
    /// Port of the bus that other nodes are told; 0: the one of the bus.
    pub announce_bus_port: u64,
    /// The machine it runs on; empty: as the machine says.
    pub host_id: String,
    /// Its zone; empty: none.
    pub zone: String,
    /// Silence after which another node is failed, milliseconds.
    pub cluster_node_timeout_ms: u64,
    /// Seconds after which what a failed node held is copied elsewhere.
    pub repair_after_s: u64,
    /// How long a node that lost its memory may take to say what it still has, milliseconds.
    pub rejoin_wait_ms: u64,
    /// Copies below which no ADDJOB is content.
    pub min_replicate: u64,
    /// Password that clients must give.
    pub requirepass: Option<Vec<u8>>,
    /// New names of commands; an empty one takes the command away.
    pub renamed_commands: Vec<(String, String)>,
    /// Clients at a time.
    pub maxclients: u64,
    /// Bytes of jobs, queues and client buffers; 0: no limit.
    pub maxmemory: u64,
    /// What goes when memory is used up: `acks` or `noeviction`; see [`Settings::evicts`].
    pub maxmemory_policy: &'static str,
    /// Output that a client may leave unread.
    pub output_limit: OutputLimit,
    /// Commands that take longer enter the slow log; negative: none.
    pub slowlog_slower_than_us: i64,
    /// Entries of the slow log, for each shard.
    pub slowlog_max_len: u64,
    /// Events that take as long are kept for LATENCY; 0: none.
    pub latency_threshold_ms: u64,
    /// Shards; 0: one for each CPU.
    pub shards: u64,
    /// CPUs to run on, like `0-3,8`; empty: all that the process may use.
    pub cpus: String,
    /// Whether DEBUG may end the process.
    pub enable_debug_command: bool,
    /// Values of settings without a meaning, where they were given.
    pub ignored: BTreeMap<&'static str, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            port: 7711,
            tcp_backlog: 511,
            sockets: "auto",
            bind: vec!["127.0.0.1".to_owned()],
            unixsocket: String::new(),
            unixsocketperm: 0,
            timeout_s: 0,
            tcp_keepalive_s: kind::KEEPALIVE_S,
            loglevel: "notice",
            logfile: String::new(),
            pidfile: String::new(),
            dir: String::new(),
            appendonly: false,
            appendfsync: "everysec",
            aof_rewrite_percentage: 100,
            aof_rewrite_min_bytes: 64 << 20,
            aof_load_truncated: true,
            aof_segment_bytes: 16 << 20,
            cluster_config_file: "nodes.conf".to_owned(),
            bus_port: 0,
            bus_bind: Vec::new(),
            cluster_secret: None,
            announce_host: String::new(),
            announce_port: 0,
            announce_bus_port: 0,
            host_id: String::new(),
            zone: String::new(),
            cluster_node_timeout_ms: 15_000,
            repair_after_s: 300,
            rejoin_wait_ms: 5_000,
            min_replicate: 1,
            requirepass: None,
            renamed_commands: Vec::new(),
            maxclients: 10_000,
            maxmemory: 1 << 30,
            maxmemory_policy: "acks",
            output_limit: OutputLimit {
                hard_bytes: 256 << 20,
                soft_bytes: 64 << 20,
                soft_s: 60,
            },
            slowlog_slower_than_us: 10_000,
            slowlog_max_len: 128,
            latency_threshold_ms: 0,
            shards: 0,
            cpus: String::new(),
            enable_debug_command: false,
            ignored: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Whether acknowledged and delivered at-most-once jobs are evicted when memory is used up.
    pub fn evicts(&self) -> bool {
        self.maxmemory_policy == "acks"
    }

    /// The port of the bus; 0: there is none. More than a port can be, when `port` leaves no room and `bus-port` is not set.
    pub fn bus_port(&self) -> u64 {
        match (self.bus_port, self.port) {
            (0, 0) => 0,
            (0, port) => port + u64::from(BUS_PORT_DISTANCE),
            (port, _) => port,
        }
    }

    /// Sets a value given in the configuration file or on the command line (several words are joined by a blank).
    pub fn set_initial(&mut self, name: &str, value: &str) -> Result<&'static Setting, SettingError> {
        let setting = find(name).ok_or_else(|| SettingError::Unknown(name.to_owned()))?;
        self.write(setting, value)?;
        Ok(setting)
    }

    /// Sets a value as CONFIG SET does: only of settings that can change while the server runs.
    pub fn set(&mut self, name: &str, value: &str) -> Result<&'static Setting, SettingError> {
        let setting = find(name)
            .filter(|setting| setting.access != Access::File)
            .ok_or_else(|| SettingError::Unknown(name.to_owned()))?;
        if setting.access != Access::GetSet {
            return Err(SettingError::Bad {
                name: setting.name,
                why: "can't set immutable config".to_owned(),
            });
        }
        self.write(setting, value)?;
        Ok(setting)
    }

    /// The value of a setting as CONFIG GET shows it, whether CONFIG GET knows it or not.
    pub fn get(&self, name: &str) -> Option<String> {
        find(name).map(|setting| self.show(setting))
    }

    /// The value of a setting as CONFIG GET shows it.
    pub fn show(&self, setting: &Setting) -> String {
        match setting.kind {
            Kind::Ignored { default, .. } => self
                .ignored
                .get(setting.name)
                .map_or_else(|| default.to_owned(), Clone::clone),
            ref kind => kind.show(self),
        }
    }

    /// Name and value of all settings that CONFIG GET knows and whose names fit, in the order of the table.
    pub fn matching(&self, fits: impl Fn(&str) -> bool) -> Vec<(&'static str, String)> {
        TABLE
            .iter()
            .filter(|setting| matches!(setting.access, Access::Get | Access::GetSet) && fits(setting.name))
            .map(|setting| (setting.name, self.show(setting)))
            .collect()
    }

    /// All settings with their present values, and whether each has its default: what CONFIG REWRITE goes by.
    pub fn all(&self) -> impl Iterator<Item = (&'static Setting, String, bool)> {
        let defaults = Self::default();
        TABLE.iter().map(move |setting| {
            let value = self.show(setting);
            let is_default = value == defaults.show(setting);
            (setting, value, is_default)
        })
    }

    fn write(&mut self, setting: &'static Setting, value: &str) -> Result<(), SettingError> {
        let written = match setting.kind {
            Kind::Ignored { ref form, .. } => form.normal(value).map(|value| {
                self.ignored.insert(setting.name, value);
            }),
            ref kind => kind.write(self, value),
        };
        written.map_err(|why| SettingError::Bad {
            name: setting.name,
            why,
        })
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The form of its value, and where the value is.
    pub kind: Kind,
    /// Where it can be seen and set besides the file and the command line.
    pub access: Access,
    /// What it means, in one line; for an ignored one, why it means nothing.
    pub meaning: &'static str,
}

impl Setting {
    /// Why it has no meaning, if it has none: whoever sets it is to be told.
    pub fn ignored(&self) -> Option<&'static str> {
        matches!(self.kind, Kind::Ignored { .. }).then_some(self.meaning)
    }

    /// Its value when it is not given.
    pub fn default_value(&self) -> String {
        Settings::default().show(self)
    }
}

/// Where a setting can be seen and set besides the file and the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nowhere.
    File,
    /// CONFIG GET.
    Get,
    /// CONFIG GET and CONFIG SET.
    GetSet,
}

/// Finds a setting by its name, in any case.
pub fn find(name: &str) -> Option<&'static Setting> {
    TABLE
        .iter()
        .find(|setting| setting.name.eq_ignore_ascii_case(name))
}

/// Why a value was refused; nothing was set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingError {
    /// No such setting, or not one for CONFIG SET.
    #[error("there is no setting '{0}'")]
    Unknown(String),
    /// Not a value of this setting.
    #[error("{name}: {why}")]
    Bad {
        /// The setting.
        name: &'static str,
        /// Why.
        why: String,
    },
}

/// The replies of CONFIG SET.
impl From<SettingError> for CommandError {
    fn from(error: SettingError) -> Self {
        Self::other(match error {
            SettingError::Unknown(name) => {
                format!(
                    "Unknown option or number of arguments for CONFIG SET - '{}'",
                    name.escape_default()
                )
            }
            SettingError::Bad { name, why } => {
                format!("CONFIG SET failed (possibly related to argument '{name}') - {why}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_are_values() {
        for (i, setting) in TABLE.iter().enumerate() {
            assert!(
                TABLE[..i].iter().all(|other| other.name != setting.name),
                "{}",
                setting.name
            );
            let mut settings = Settings::default();
            settings
                .set_initial(setting.name, &setting.default_value())
                .unwrap_or_else(|error| panic!("default of {}: {error}", setting.name));
            assert_eq!(
                settings.show(setting),
                setting.default_value(),
                "{}",
                setting.name
            );
        }
    }

    #[test]
    fn what_clients_and_redis_benchmark_ask_for() {
        let settings = Settings::default();
        assert_eq!(settings.get("save").as_deref(), Some(""));
        assert_eq!(settings.get("appendonly").as_deref(), Some("no"));
        assert_eq!(settings.get("maxmemory").as_deref(), Some("1073741824"));
        assert_eq!(
            settings.get("client-output-buffer-limit").as_deref(),
            Some("normal 268435456 67108864 60")
        );
        assert_eq!(
            settings.matching(|name| name.starts_with("maxmemory")),
            [
                ("maxmemory", "1073741824".to_owned()),
                ("maxmemory-policy", "acks".to_owned()),
                ("maxmemory-samples", "5".to_owned()),
            ]
        );
    }

    #[test]
    fn config_set_keeps_to_what_can_change() {
        let mut settings = Settings::default();
        assert_eq!(settings.set("MaxMemory", "2gb").map(|s| s.name), Ok("maxmemory"));
        assert_eq!(settings.maxmemory, 2 << 30);
        assert!(settings.set("port", "1").is_err());
        for unknown in ["include", "nonsense"] {
            let error = settings.set(unknown, "x").map(|setting| setting.name);
            assert_eq!(error, Err(SettingError::Unknown(unknown.to_owned())));
        }
        assert!(settings.set("maxmemory", "lots").is_err());
        assert_eq!(settings.maxmemory, 2 << 30, "a refused value changes nothing");
    }

    #[test]
    fn the_password_can_be_set_shown_and_cleared() {
        let mut settings = Settings::default();
        assert!(settings.set("requirepass", "secret").is_ok());
        assert_eq!(settings.requirepass.as_deref(), Some(&b"secret"[..]));
        assert_eq!(settings.get("requirepass").as_deref(), Some("secret"));
        assert!(settings.set("requirepass", "").is_ok());
        assert_eq!(settings.requirepass, None);
        assert!(settings.set("requirepass", &"x".repeat(513)).is_err());
    }

    #[test]
    fn the_bus_port_follows_the_client_port() {
        let mut settings = Settings::default();
        assert_eq!(settings.bus_port(), 17_711);
        settings.port = 0;
        assert_eq!(settings.bus_port(), 0, "a Unix socket only");
        settings.bus_port = 7;
        assert_eq!(settings.bus_port(), 7);
        assert!(settings.set("cluster-secret", "x").is_err(), "only at the start");
    }

    #[test]
    fn ignored_settings_are_kept_and_say_so() {
        let mut settings = Settings::default();
        let databases = settings.set_initial("databases", "3");
        assert!(databases.is_ok_and(|setting| setting.ignored().is_some()));
        assert_eq!(settings.get("databases").as_deref(), Some("3"));
        assert!(settings.set_initial("databases", "three").is_err());
        assert!(find("maxmemory").is_some_and(|setting| setting.ignored().is_none()));
        let changed: Vec<_> = settings.all().filter(|(_, _, is_default)| !is_default).collect();
        assert_eq!(changed.len(), 1);
    }
}

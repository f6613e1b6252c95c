//! From settings to a running node, and back.
//!
//! All that can fail for a reason outside of us (limits, ports, files) is tried before the first shard runs, so that it ends in one
//! plain sentence and exit code 1. Shards are made one after the other: the mesh numbers them in that order.

mod listen;
mod probe;
mod signals;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use shard::cluster::conf::Nodes;
use shard::id::NodeId;
use shard::limits::MAX_SHARDS;
use shard::log::LogBoot;
use shard::settings::Settings;
use shard::shard::{NodeFacts, Shard, ShardOptions};
use shard::slot::ShardNo;
use thiserror::Error;
use tracing::{info, warn};

use crate::bell::Bells;
use crate::bus::{self, Bus};
use crate::config::rewrite::ConfigFile;
use crate::config::{Config, cpus};
use crate::executor::Heartbeat;
use crate::log::{self, Files, FolderLock};
use crate::mesh::{self, Mesh};
use crate::net::{self, Listener, Net, Ring};
use crate::nodes::{self, NodesError, NodesFile};
use crate::wakeup::Wakeup;
use crate::worker::{Clock, Parts, Posts, Worker};
use crate::{executor, process, telemetry};

/// Where the log is kept: the working folder, whichever the setting `dir` makes it.
const DATA_FOLDER: &str = ".";

/// Why the node cannot start; each says what mends it.
#[derive(Debug, Error)]
pub enum BootError {
    /// The system does not let us do what we need.
    #[error(transparent)]
    Probe(#[from] probe::ProbeError),
    /// A port or a Unix socket cannot be had.
    #[error(transparent)]
    Listen(#[from] listen::ListenError),
    /// The log keeps us from starting.
    #[error(transparent)]
    Log(#[from] log::LogError),
    /// The file of the cluster keeps us from starting.
    #[error(transparent)]
    Nodes(#[from] NodesError),
    /// A setting that only the server can check.
    #[error("{0}")]
    Setting(String),
    /// An operation of the system failed.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: String,
        /// How it failed.
        error: std::io::Error,
    },
    /// An executor could not be made.
    #[error(
        "cannot set up shard {shard} on CPU {cpu}: {error}\n  Often the locked memory is used up: raise it with `ulimit -l unlimited`, \
         or in a container `docker run --ulimit memlock=-1`; fewer shards (--shards) need less."
    )]
    Executor {
        /// Whose.
        shard: ShardNo,
        /// Where.
        cpu: usize,
        /// How it failed.
        error: String,
    },
}

/// Runs a node until it is told to stop.
pub fn run(config: Config) -> Result<(), BootError> {
    stop_on_panic();
    let Config {
        mut settings,
        file,
        warnings,
    } = config;
    let file = file.map(|path| (path.display().to_string(), ConfigFile::new(path)));
    change_folder(&settings)?;
    telemetry::start(settings.loglevel, &settings.logfile).map_err(|error| BootError::System {
        what: format!("cannot log to {}", settings.logfile),
        error,
    })?;
    for warning in &warnings {
        warn!("{warning}");
    }
    let cpus = place_shards(&settings)?;
    let shards = ShardNo::try_from(cpus.len()).expect("checked against the limit");
    let log_files = if settings.appendonly {
        u64::from(shards) * log::MOST_OPEN
    } else {
        0
    };
    settings.maxclients = probe::open_files(settings.maxclients, log_files)?;
    probe::io_uring()?;
    probe::locked_memory()?;
    let has_rings = probe::socket_rings(settings.sockets, net::probe)?;
    let (listeners, addresses) = listen::bind(&settings)?;
    if settings.requirepass.is_none() && listen::is_open(&settings) {
        warn!(
            "anybody who reaches this machine's network can read and change all jobs: set `requirepass`, or `bind` to loopback"
        );
    }
    let bus_listeners = listen::bind_bus(&settings)?;
    let unix_socket = listeners.iter().find_map(|listener| listener.unix_path.clone());
    let stop_requests = signals::watch()?;
    // Late, since it may put a log aside; before the pidfile, which may be that of the server that holds the lock.
    let lock = FolderLock::new(Path::new(DATA_FOLDER));
    let booted = log::boot(&lock, settings.appendonly, shards);
    let booted = booted.inspect_err(|_| remove_files(unix_socket.as_deref(), None))?;
    let opened = NodesFile::open(&settings.cluster_config_file);
    let (nodes_file, nodes) = opened.inspect_err(|_| remove_files(unix_socket.as_deref(), None))?;
    let pidfile = write_pidfile(&settings)?;

    let node = Node {
        options: ShardOptions {
            log: booted,
            ..options(shards, file.as_ref().map_or("", |(path, _)| path), nodes)
        },
        nodes_file,
        has_rings,
        settings,
        clock: Clock::start(),
        config_file: file.map(|(_, file)| file),
        lock,
    };
    let of_shard_0 = OfShard0 {
        listeners,
        bus_listeners,
        stop_requests,
    };
    let ended = node.start_shards(&cpus, of_shard_0)?;
    info!(
        "shardq {} ready on {}; {} shards on CPUs {}, pid {}",
        env!("CARGO_PKG_VERSION"),
        addresses.join(" "),
        cpus.len(),
        cpus::show(&cpus),
        std::process::id()
    );
    for _ in &cpus {
        ended.recv().expect("every shard says when it ends");
    }
    remove_files(unix_socket.as_deref(), pidfile);
    info!("stopped");
    Ok(())
}

/// What all shards are made from.
struct Node {
    options: ShardOptions,
    settings: Settings,
    has_rings: bool,
    clock: Clock,
    config_file: Option<ConfigFile>,
    lock: FolderLock,
    nodes_file: NodesFile,
}

impl Node {
    /// Starts a thread for each shard; returns where each of them says that it has ended.
    fn start_shards(&self, cpus: &[usize], of_shard_0: OfShard0) -> Result<Receiver<()>, BootError> {
        let (ended, all_ended) = channel();
        let mesh = mesh::builder(self.options.shards);
        let bells = Bells::new(self.options.shards).map_err(|error| BootError::System {
            what: "cannot make the shards' bells".to_owned(),
            error,
        })?;
        let mut of_shard_0 = Some(of_shard_0);
        for (number, &cpu) in cpus.iter().enumerate() {
            let number = ShardNo::try_from(number).expect("checked against the limit");
            let (made, is_made) = channel();
            let seat = Seat {
                options: ShardOptions {
                    shard: number,
                    seed: random()?,
                    ..self.options.clone()
                },
                settings: self.settings.clone(),
                has_ring: self.has_rings,
                clock: self.clock,
                config_file: self.config_file.clone(),
                lock: self.lock.clone(),
                nodes_file: self.nodes_file.clone(),
                mesh: mesh.clone(),
                bells: bells.clone(),
                of_shard_0: of_shard_0.take(),
            };
            let ended = ended.clone();
            thread::Builder::new()
                .name(format!("shard-{number}"))
                .spawn(move || seat.run(cpu, &made, &ended))
                .map_err(|error| BootError::System {
                    what: "cannot start a thread".to_owned(),
                    error,
                })?;
            is_made
                .recv()
                .expect("a shard's thread says whether its executor was made")
                .map_err(|error| BootError::Executor {
                    shard: number,
                    cpu,
                    error,
                })?;
        }
        Ok(all_ended)
    }
}

/// What only shard 0 is given.
struct OfShard0 {
    listeners: Vec<Listener>,
    bus_listeners: Vec<Listener>,
    stop_requests: signals::StopRequests,
}

/// What one shard's thread is given.
struct Seat {
    options: ShardOptions,
    settings: Settings,
    /// Whether its sockets are on a ring of its own.
    has_ring: bool,
    clock: Clock,
    config_file: Option<ConfigFile>,
    lock: FolderLock,
    nodes_file: NodesFile,
    mesh: mesh::Builder,
    bells: Bells,
    of_shard_0: Option<OfShard0>,
}

impl Seat {
    fn run(self, cpu: usize, made: &Sender<Result<(), String>>, ended: &Sender<()>) {
        let executor = match executor::on_cpu(cpu) {
            Ok(executor) => executor,
            Err(error) => {
                let _ = made.send(Err(error));
                return;
            }
        };
        let _ = made.send(Ok(()));
        executor.run(self.serve());
        let _ = ended.send(());
        // Taking the executor apart would wait for tasks that have nothing left to do; the process ends anyway.
        std::mem::forget(executor);
    }

    async fn serve(self) {
        let heartbeat = Heartbeat::start();
        let wakeup = Arc::new(Wakeup::default());
        let (number, shards) = (self.options.shard, self.options.shards);
        let posts = Posts::new(Arc::clone(&wakeup));
        let bell = self.bells.of(number);
        let mesh = Mesh::join(self.mesh, number, shards, &wakeup, self.bells).await;
        let ring = self.has_ring.then(|| Ring::new(&wakeup, bell.eventfd()?));
        let ring = ring.transpose().unwrap_or_else(|error| {
            warn!("shard {number} serves sockets by glommio: its ring cannot be made: {error}");
            None
        });
        let mut net = Net::new(Arc::clone(&wakeup), ring.clone(), self.settings.tcp_keepalive_s);
        let mut bus = Bus::new(bus::Parts {
            shard: number,
            shards,
            clock: self.clock,
            wakeup: Arc::clone(&wakeup),
            ring,
            secret: self.settings.cluster_secret.clone().unwrap_or_default(),
            node_timeout_ms: self.settings.cluster_node_timeout_ms,
        });
        if let Some(of_shard_0) = self.of_shard_0 {
            net.listen(of_shard_0.listeners);
            bus.listen(of_shard_0.bus_listeners);
            glommio::spawn_local(of_shard_0.stop_requests.forward(posts.clone())).detach();
        }
        let shard = Shard::new(self.options, self.settings, self.clock.now());
        Worker::new(Parts {
            shard,
            number,
            shards,
            clock: self.clock,
            net,
            bus,
            mesh,
            bell,
            posts,
            wakeup,
            config_file: self.config_file,
            files: Files::new(self.lock),
            nodes_file: self.nodes_file,
            heartbeat,
        })
        .run()
        .await;
    }
}

/// A broken invariant of our own: say so and stop at once, before any state built on it is seen.
fn stop_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let thread = thread::current();
        eprintln!(
            "shardq {} stops: an assertion about its own state failed. This is a bug in shardq.\n  {text}\n  at {place}, thread {}",
            env!("CARGO_PKG_VERSION"),
            thread.name().unwrap_or("?")
        );
        tracing::error!("stopped by a broken invariant: {text} at {place}");
        std::process::abort();
    }));
}

fn change_folder(settings: &Settings) -> Result<(), BootError> {
    if settings.dir.is_empty() {
        return Ok(());
    }
    std::env::set_current_dir(&settings.dir).map_err(|error| BootError::System {
        what: format!("cannot change to the folder '{}' (setting dir)", settings.dir),
        error,
    })
}

/// The CPU of each shard.
fn place_shards(settings: &Settings) -> Result<Vec<usize>, BootError> {
    let chosen = cpus::choose(&settings.cpus, &cpus::allowed())
        .map_err(|why| BootError::Setting(format!("setting cpus: {why}")))?;
    let count = match settings.shards {
        0 => chosen.len().min(usize::from(MAX_SHARDS)),
        wanted if wanted <= u64::from(MAX_SHARDS) => wanted as usize,
        _ => {
            return Err(BootError::Setting(format!(
                "setting shards: {MAX_SHARDS} at the most"
            )));
        }
    };
    if count > chosen.len() {
        warn!(
            "{count} shards share {} CPUs; one shard for each CPU is faster",
            chosen.len()
        );
    }
    Ok(chosen.iter().copied().cycle().take(count).collect())
}

fn options(shards: u16, config_file: &str, nodes: Nodes) -> ShardOptions {
    let [node, run_id] = [random(), random()].map(|bytes| bytes.unwrap_or([0; 20]));
    let known = nodes.me.as_ref().map(|me| me.id);
    ShardOptions {
        shard: 0,
        shards,
        node: known.unwrap_or(NodeId::from_bytes(node)),
        seed: [0; 32],
        hash_seed: random().map(u64::from_le_bytes).unwrap_or(0),
        facts: NodeFacts {
            process_id: std::process::id(),
            run_id: run_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            executable: std::env::current_exe()
                .map(|path| path.display().to_string())
                .unwrap_or_default(),
            config_file: config_file.to_owned(),
            os: process::operating_system(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            machine: nodes::machine(),
            nodes: Some(nodes),
        },
        log: LogBoot::nothing(),
    }
}

fn random<const N: usize>() -> Result<[u8; N], BootError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| BootError::System {
        what: "the system gives no random numbers".to_owned(),
        error: error.into(),
    })?;
    Ok(bytes)
}

fn write_pidfile(settings: &Settings) -> Result<Option<PathBuf>, BootError> {
    if settings.pidfile.is_empty() {
        return Ok(None);
    }
    let written = std::path::absolute(&settings.pidfile).and_then(|path| {
        fs::write(&path, format!("{}\n", std::process::id()))?;
        Ok(path)
    });
    written.map(Some).map_err(|error| BootError::System {
        what: format!("cannot write the pidfile '{}'", settings.pidfile),
        error,
    })
}

fn remove_files(unix_socket: Option<&str>, pidfile: Option<PathBuf>) {
    for path in unix_socket.map(PathBuf::from).into_iter().chain(pidfile) {
        if let Err(error) = fs::remove_file(&path) {
            warn!("cannot remove {}: {error}", path.display());
        }
    }
}

//! The real binary, started for one test: its port, its folder, its log, and its end.
//!
//! Tests run beside each other, and so may whole suites. So each server has a folder and a port of its own, is known to be the one that was
//! started (it logs that it listens, which no second process on that port can), and is killed when its test ends, however
//! it ends. Nothing here waits for a fixed time: conditions are polled, with a limit that only a hanging server reaches.

// Each test binary uses its part of the module.
#![allow(dead_code)]

#[path = "../../shard/tests/support/chance.rs"]
pub mod chance;
pub mod tiny_disk;
pub mod wire;

use std::fs;
use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tools::address::Address;
use tools::client::Client;
use tools::reply::Reply;

/// How long a condition may take to hold before the test fails: far beyond what a loaded machine needs.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Ports that are tried: below those that the system gives to outgoing connections, as is the bus port above each, which is nobody's
/// client port.
const PORTS: std::ops::Range<u32> = 12_000..22_000;
const START_ATTEMPTS: usize = 20;

/// How the servers of this test binary serve their sockets, unless a test says otherwise.
const SOCKETS: &str = match env!("CARGO_CRATE_NAME").as_bytes() {
    b"sockets_of_glommio" => "glommio",
    _ => "auto",
};

/// How a server is to be started.
#[derive(Clone, Default)]
pub struct Setup {
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    files: Vec<(String, String)>,
    limits: Vec<(i32, u64)>,
    without_port: bool,
}

impl Setup {
    /// A server with these flags, separated by blanks.
    pub fn flags(flags: &str) -> Self {
        let flags = flags.split_ascii_whitespace().map(str::to_owned).collect();
        Self {
            flags,
            ..Self::default()
        }
    }

    /// A flag or a positional argument more, as it is.
    pub fn argument(mut self, argument: &str) -> Self {
        self.flags.push(argument.to_owned());
        self
    }

    /// With an environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a file in its folder.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// With a resource limit, soft and hard.
    pub fn limit(mut self, resource: u32, value: u64) -> Self {
        self.limits.push((resource as i32, value));
        self
    }

    /// Without `--port`: the flags or the file name one, or none.
    pub fn without_port(mut self) -> Self {
        self.without_port = true;
        self
    }

    /// Starts it; it serves when this returns.
    pub fn start(self) -> Server {
        for _ in 0..START_ATTEMPTS {
            let port = free_port();
            let folder = Folder::new();
            let mut server = self.spawn(port, folder);
            if server.comes_up() {
                return server;
            }
            let log = server.log();
            assert!(
                log.contains("Another process listens"),
                "the server ends at its start:\n{log}"
            );
        }
        panic!("no free port in {START_ATTEMPTS} attempts");
    }

    /// Starts it on this port, in a folder that may have been used before.
    pub fn start_at(self, port: u16, folder: Folder) -> Server {
        let mut server = self.spawn(port, folder);
        assert!(
            server.comes_up(),
            "the server ends at its start:\n{}",
            server.log()
        );
        server
    }

    /// Starts it to fail: exit code and all output.
    pub fn fail(self) -> (Option<i32>, String) {
        let mut server = self.spawn(free_port(), Folder::new());
        let status = server.wait_exit();
        (status.code(), server.log())
    }

    /// Starts the process, and does not wait.
    pub fn spawn(&self, port: u16, folder: Folder) -> Server {
        for (name, text) in &self.files {
            fs::write(folder.path.join(name), text).expect("the folder is ours");
        }
        let output = fs::File::create(folder.path.join(LOG)).expect("the folder is ours");
        let mut command = Command::new(env!("CARGO_BIN_EXE_shardq"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SHARDQ_") {
                command.env_remove(name);
            }
        }
        command
            .current_dir(&folder.path)
            .env("SHARDQ_SOCKETS", SOCKETS)
            .args(&self.flags)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output);
        if !self.without_port {
            command.arg("--port").arg(port.to_string());
        }
        let limits = self.limits.clone();
        // SAFETY: only system calls that may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                for &(resource, value) in &limits {
                    let limit = libc::rlimit {
                        rlim_cur: value,
                        rlim_max: value,
                    };
                    if libc::setrlimit(resource as libc::__rlimit_resource_t, &limit) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("the binary was built with the test");
        Server {
            child,
            status: None,
            port,
            folder,
        }
    }
}

/// Where the output of a server goes, and the name that a test gives as `logfile`.
const LOG: &str = "output.log";
const LOGFILE: &str = "server.log";

/// A folder for one server, removed in the end.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Short, since the path of a Unix socket is limited.
            let path = std::env::temp_dir().join(format!("shardq-{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // A test binary may have this module several times, each with its own numbers.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("cannot make the folder {}: {error}", path.display()),
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A running server; killed when it is dropped.
pub struct Server {
    child: Child,
    status: Option<ExitStatus>,
    port: u16,
    folder: Folder,
}

impl Server {
    /// A server with these flags, separated by blanks.
    pub fn start(flags: &str) -> Self {
        Setup::flags(flags).start()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> Address {
        Address::tcp("127.0.0.1", self.port)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path.join(name)
    }

    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// A new connection, in RESP2.
    pub fn client(&self) -> Client {
        Client::connect(&self.address(), PATIENCE).expect("the server accepts connections")
    }

    /// A new connection, in RESP3.
    pub fn client_resp3(&self) -> Client {
        let (client, _) =
            Client::connect_resp3(&self.address(), PATIENCE).expect("the server accepts HELLO 3");
        client
    }

    /// Everything that the process has written, also to `server.log`.
    pub fn log(&self) -> String {
        let written = |name| fs::read(self.folder.path.join(name)).unwrap_or_default();
        let bytes = [written(LOG), written(LOGFILE)].concat();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).expect("process IDs are ints");
        // SAFETY: the process is our child and was not waited for, so the ID is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our child can be waited for");
        }
        self.status.is_some()
    }

    pub fn wait_exit(&mut self) -> ExitStatus {
        eventually("the server ends", || self.has_ended());
        self.status.expect("it has ended")
    }

    /// The folder, once the process has ended, for another start in it.
    pub fn into_folder(mut self) -> Folder {
        self.wait_exit();
        std::mem::replace(&mut self.folder, Folder::new())
    }

    /// A field of INFO.
    pub fn info(&self, section: &str, field: &str) -> String {
        info(&mut self.client(), section, field)
    }

    fn comes_up(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(" ready on ") {
            if self.has_ended() {
                return false;
            }
            assert!(
                Instant::now() < deadline,
                "the server does not come up:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.status.is_none() {
            // It may have ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- the server on port {} wrote:\n{}---", self.port, self.log());
        }
    }
}

/// Starts it, and waits until its log is read.
pub fn start(setup: Setup) -> Server {
    let server = setup.start();
    loaded(&server);
    server
}

/// Starts in a folder that was used before, and waits until the log is read.
pub fn restart(setup: Setup, folder: Folder) -> Server {
    let server = setup.start_at(free_port(), folder);
    loaded(&server);
    server
}

/// Waits until the log is read.
pub fn loaded(server: &Server) {
    eventually("the log is read", || server.info("persistence", "loading") == "0");
}

/// Ends the server by a signal: SIGKILL without a word, SIGTERM in order.
pub fn end(mut server: Server, signal: i32) -> Folder {
    server.signal(signal);
    let status = server.wait_exit();
    if signal == libc::SIGTERM {
        assert_eq!(status.code(), Some(0), "{}", server.log());
    }
    server.into_folder()
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A field of INFO, asked on this connection.
pub fn info(client: &mut Client, section: &str, field: &str) -> String {
    let reply = client.call_ok(&["INFO", section]).expect("INFO answers");
    let text = reply.text().expect("INFO is text").to_owned();
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value
        .unwrap_or_else(|| panic!("no field {field} in:\n{text}"))
        .to_owned()
}

/// Calls a command given as words separated by blanks; an error reply fails the test.
pub fn call(client: &mut Client, line: &str) -> Reply {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    client
        .call_ok(&words)
        .unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Adds a job: its ID.
pub fn add(client: &mut Client, line: &str) -> String {
    call(client, line).text().expect("an ID").to_owned()
}

/// The elements (queue, ID, body) of a reply of GETJOB or QPEEK; none for a null.
pub fn jobs(reply: &Reply) -> Vec<(String, String, Vec<u8>)> {
    let text = |reply: &Reply| reply.text().expect("text").to_owned();
    let elements = reply.array().unwrap_or_default().iter();
    elements
        .map(|job| {
            let job = job.array().expect("a job is an array");
            (
                text(&job[0]),
                text(&job[1]),
                job[2].bytes().expect("a body").to_vec(),
            )
        })
        .collect()
}

/// A number that the environment gives, like `SHARDQ_SEED`.
pub fn number_from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
    )
}

/// Size of a load: a small default, multiplied by `SHARDQ_TEST_SCALE`.
pub fn scaled(small: usize) -> usize {
    let scale = std::env::var("SHARDQ_TEST_SCALE")
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    small * scale.unwrap_or(1).max(1)
}

/// Reads all that a socket gives until its end; a reset is an end too.
pub fn read_to_end(socket: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => bytes,
        Err(error) => panic!("cannot read to the end: {error}"),
    }
}

/// A port on which nobody listens now. Another process may take it: whoever uses it tries again.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mixed = (std::process::id().wrapping_mul(0x9e37_79b9)).wrapping_add(number.wrapping_mul(7919));
        let port = PORTS.start + (mixed >> 4) % (PORTS.end - PORTS.start);
        let port = u16::try_from(port).expect("the range is one of ports");
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

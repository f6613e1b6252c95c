//! Binds the ports and the Unix socket that clients connect to, before any shard runs.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shard::settings::{BUS_PORT_DISTANCE, Settings};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use thiserror::Error;
use tracing::warn;

use crate::net::Listener;

/// How often, and how long apart, an address in use is tried again.
const BIND_RETRIES: usize = 100;
const BIND_PAUSE: Duration = Duration::from_millis(10);

/// Why there is nothing to listen on.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A port.
    #[error("cannot listen on {address}: {error}{hint}")]
    Tcp {
        address: SocketAddr,
        error: io::Error,
        hint: String,
    },
    /// The client port leaves no room above it.
    #[error(
        "port {0} + {BUS_PORT_DISTANCE} is no port for other nodes to connect to\n  Choose one with --bus-port, or a lower --port."
    )]
    BusPort(u64),
    /// A Unix socket.
    #[error("cannot listen on the Unix socket {path}: {why}")]
    Unix { path: String, why: String },
    /// The settings name nothing.
    #[error("nothing to listen on: `port` is 0 and `unixsocket` is not set")]
    Nothing,
}

/// Whether other machines can reach the port of the clients.
pub(super) fn is_open(settings: &Settings) -> bool {
    let addresses = tcp_addresses(&settings.bind, 0);
    settings.port != 0 && addresses.iter().any(|address| !address.ip().is_loopback())
}

/// All listeners, and their addresses as they are shown to people.
pub(super) fn bind(settings: &Settings) -> Result<(Vec<Listener>, Vec<String>), ListenError> {
    let mut listeners = Vec::new();
    let mut addresses = Vec::new();
    let backlog = i32::try_from(settings.tcp_backlog).unwrap_or(i32::MAX);
    if let Some(port) = u16::try_from(settings.port).ok().filter(|&port| port != 0) {
        for address in tcp_addresses(&settings.bind, port) {
            listeners.push(bind_tcp(address, backlog, "")?);
            addresses.push(address.to_string());
        }
    }
    if !settings.unixsocket.is_empty() {
        listeners.push(bind_unix(&settings.unixsocket, settings.unixsocketperm, backlog)?);
        addresses.push(settings.unixsocket.clone());
    }
    if listeners.is_empty() {
        return Err(ListenError::Nothing);
    }
    Ok((listeners, addresses))
}

/// The listeners of the bus; none when there is no client port and no bus port.
pub(super) fn bind_bus(settings: &Settings) -> Result<Vec<Listener>, ListenError> {
    let port = match u16::try_from(settings.bus_port()) {
        Ok(0) => return Ok(Vec::new()),
        Ok(port) => port,
        Err(_) => return Err(ListenError::BusPort(settings.port)),
    };
    let backlog = i32::try_from(settings.tcp_backlog).unwrap_or(i32::MAX);
    bus_addresses(settings, port)
        .into_iter()
        .map(|address| bind_tcp(address, backlog, "bus-"))
        .collect()
}

/// Where the bus listens: without a secret, and unless told otherwise, only where no other machine reaches it.
fn bus_addresses(settings: &Settings, port: u16) -> Vec<SocketAddr> {
    let is_open = settings.cluster_secret.is_none();
    if !settings.bus_bind.is_empty() {
        let addresses = tcp_addresses(&settings.bus_bind, port);
        if let Some(address) = addresses
            .iter()
            .find(|address| !address.ip().is_loopback() && is_open)
        {
            warn!(
                "the bus listens on {address} without cluster-secret: whoever reaches it can speak as a node"
            );
        }
        return addresses;
    }
    let mut addresses = tcp_addresses(&settings.bind, port);
    if is_open {
        addresses.retain(|address| address.ip().is_loopback());
        if addresses.is_empty() {
            addresses.push((Ipv4Addr::LOCALHOST, port).into());
        }
    }
    addresses
}

fn tcp_addresses(bind: &[String], port: u16) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for text in bind {
        let address = match text.as_str() {
            "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            text => text.parse().expect("the table of settings checks addresses"),
        };
        let address = SocketAddr::new(address, port);
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// `of_setting` is what the settings `port` and `bind` begin with.
fn bind_tcp(address: SocketAddr, backlog: i32, of_setting: &str) -> Result<Listener, ListenError> {
    let bound = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // The port is free at once after the last process died, though its connections still time out.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(backlog)?;
        Ok(socket)
    };
    match with_patience(bound) {
        Ok(socket) => Ok(Listener {
            socket: socket.into(),
            unix_path: None,
        }),
        Err(error) => Err(ListenError::Tcp {
            address,
            hint: hint(&error, of_setting),
            error,
        }),
    }
}

/// Tries again for a moment while the address is in use: the kernel takes the rings of a killed process apart after its end, and they
/// hold its listening socket until then.
fn with_patience(mut bind: impl FnMut() -> io::Result<Socket>) -> io::Result<Socket> {
    for _ in 0..BIND_RETRIES {
        match bind() {
            Err(error) if error.kind() == ErrorKind::AddrInUse => std::thread::sleep(BIND_PAUSE),
            done => return done,
        }
    }
    bind()
}

fn hint(error: &io::Error, of_setting: &str) -> String {
    match error.kind() {
        ErrorKind::AddrInUse => format!(
            "\n  Another process listens there; `ss -ltnp` shows which. Choose another one with --{of_setting}port."
        ),
        ErrorKind::PermissionDenied => format!(
            "\n  Ports below 1024 need a privilege: choose another one with --{of_setting}port, or give it with `setcap cap_net_bind_service=+ep`."
        ),
        ErrorKind::AddrNotAvailable => format!(
            "\n  This machine has no such address; `ip address` shows those it has. Set --{of_setting}bind."
        ),
        _ => String::new(),
    }
}

fn bind_unix(path: &str, permissions: u64, backlog: i32) -> Result<Listener, ListenError> {
    let refused = |why: String| ListenError::Unix {
        path: path.to_owned(),
        why,
    };
    make_way(Path::new(path)).map_err(refused)?;
    let bound = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        if permissions != 0 {
            let permissions = u32::try_from(permissions).unwrap_or(0o700);
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(permissions))?;
        }
        socket.listen(backlog)?;
        Ok(socket)
    };
    let socket: Socket = bound().map_err(|error: io::Error| refused(error.to_string()))?;
    // An absolute path, since `dir` may change the working folder before it is removed.
    let absolute = std::path::absolute(path).map_err(|error| refused(error.to_string()))?;
    Ok(Listener {
        socket: socket.into(),
        unix_path: Some(Arc::from(absolute.to_string_lossy())),
    })
}

/// Removes the socket of a server that died; refuses that of one that lives, and anything that is no socket.
fn make_way(path: &Path) -> Result<(), String> {
    let Ok(found) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err("there is a file of that name that is no socket".to_owned());
    }
    match UnixStream::connect(path) {
        Ok(_) => Err("another server listens there".to_owned()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| format!("cannot remove the old one: {error}"))
        }
        Err(error) => Err(format!("there is one already, and it cannot be tried: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn addresses() {
        let bind = ["*", "0.0.0.0", "::1", "127.0.0.1"].map(str::to_owned);
        let shown: Vec<String> = tcp_addresses(&bind, 7).iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["0.0.0.0:7", "[::1]:7", "127.0.0.1:7"]);
    }

    #[test]
    fn the_bus_is_open_only_to_those_who_know_the_secret_or_when_told() {
        let shown = |bind: &str, bus_bind: &str, secret: &str| {
            let mut settings = Settings::default();
            for (name, value) in [("bind", bind), ("bus-bind", bus_bind), ("cluster-secret", secret)] {
                assert!(settings.set_initial(name, value).is_ok());
            }
            let addresses = bus_addresses(&settings, 7);
            addresses
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(shown("127.0.0.1", "", ""), "127.0.0.1:7");
        assert_eq!(shown("*", "", ""), "127.0.0.1:7");
        assert_eq!(shown("10.0.0.1 ::1", "", ""), "[::1]:7");
        assert_eq!(shown("10.0.0.1 ::1", "", "x"), "10.0.0.1:7 [::1]:7");
        assert_eq!(shown("10.0.0.1", "10.0.0.2", ""), "10.0.0.2:7");
    }

    #[test]
    fn a_client_port_without_room_above_it_is_explained() {
        let settings = Settings {
            port: 60_000,
            ..Settings::default()
        };
        let error = bind_bus(&settings).unwrap_err().to_string();
        assert!(error.contains("60000") && error.contains("--bus-port"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_explained() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let error = bind_tcp(taken.local_addr().unwrap(), 5, "").unwrap_err();
        assert!(
            error.to_string().contains("Another process listens there"),
            "{error}"
        );
    }

    #[test]
    fn only_the_socket_of_a_dead_server_is_replaced() {
        let path = std::env::temp_dir().join(format!("shardq-listen-{}", std::process::id()));
        let name = path.to_str().unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(bind_unix(name, 0, 5).is_err(), "a plain file stays");
        std::fs::remove_file(&path).unwrap();
        let living = UnixListener::bind(&path).unwrap();
        assert!(bind_unix(name, 0, 5).is_err(), "a living server keeps its socket");
        drop(living);
        let listener = bind_unix(name, 0o600, 5).unwrap();
        assert_eq!(listener.unix_path.as_deref(), Some(name));
        let permissions = std::fs::metadata(&path).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
    }
}

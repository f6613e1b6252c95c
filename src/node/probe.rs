//! What the system must let us do, tried before the first executor: glommio panics where something is missing.
//!
//! Each failure says what is missing, why it is needed, and the command that mends it, outside of and in a container.

use std::fs;
use std::io;
use std::mem::MaybeUninit;

use thiserror::Error;
use tracing::{info, warn};

/// Descriptors kept for other things than clients, as in the original: listeners, logs, three rings for each shard.
const RESERVED_FILES: u64 = 32;
/// glommio refuses to make an executor below this limit, also where the process need not keep to it.
const MIN_LOCKED_BYTES: u64 = 512 << 10;

/// What is missing.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// The kernel has no io_uring, or hides it.
    #[error(
        "io_uring is not there (ENOSYS). It is how shardq talks to sockets.\n  A Linux kernel of version 5.8 or later has it (this one: {kernel}). \
         In a container the seccomp profile may hide it: `docker run --security-opt seccomp=unconfined ...`, or a profile that allows \
         io_uring_setup, io_uring_enter and io_uring_register."
    )]
    NoIoUring { kernel: String },
    /// The kernel has it and does not let this process use it.
    #[error("io_uring is forbidden ({error}). It is how shardq talks to sockets.\n  {remedy}")]
    IoUringForbidden { error: io::Error, remedy: String },
    /// The probe failed otherwise.
    #[error("io_uring cannot be used: {0}. It is how shardq talks to sockets.")]
    IoUring(io::Error),
    /// The kernel has it without what sockets need, and the setting wants no other way.
    #[error("setting sockets: {0}.\n  With `sockets auto` glommio serves them instead, at more CPU.")]
    SocketRings(String),
    /// The limit on locked memory is too low.
    #[error(
        "the limit on locked memory is {limit} bytes; io_uring needs at least {MIN_LOCKED_BYTES}.\n  Raise it: `ulimit -l unlimited` in the shell that \
         starts shardq (as root, or after a line `* - memlock unlimited` in /etc/security/limits.conf), `LimitMEMLOCK=infinity` in a \
         systemd unit, `docker run --ulimit memlock=-1 ...`."
    )]
    LockedMemory { limit: u64 },
    /// Too few files may be open.
    #[error(
        "only {limit} files may be open, and {reserved} of them are not for clients.\n  Raise it: `ulimit -n 65536` in the shell that starts shardq, \
         `LimitNOFILE=65536` in a systemd unit, `docker run --ulimit nofile=65536:65536 ...`."
    )]
    OpenFiles { limit: u64, reserved: u64 },
    /// A limit cannot be read.
    #[error("cannot read a resource limit: {0}")]
    Limit(io::Error),
}

/// Checks that rings can be made.
pub(super) fn io_uring() -> Result<(), ProbeError> {
    // The kernel's `io_uring_params`, 120 bytes, all of them zero: a ring without options.
    let mut parameters = [0_u64; 15];
    // SAFETY: the kernel reads and fills a structure of the size that is given.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4_u32, parameters.as_mut_ptr()) };
    if ring >= 0 {
        let ring = i32::try_from(ring).expect("descriptors are ints");
        // SAFETY: the descriptor was made just now and is used by nobody.
        unsafe { libc::close(ring) };
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    Err(ring_error(error, setting.trim()))
}

/// Whether sockets are to be on rings of their own, as the setting `sockets` and the kernel have it.
pub(super) fn socket_rings(
    setting: &str,
    probe: impl FnOnce() -> Result<(), String>,
) -> Result<bool, ProbeError> {
    if setting == "glommio" {
        info!("sockets are served by glommio, as the setting says");
        return Ok(false);
    }
    match probe() {
        Ok(()) => Ok(true),
        Err(why) if setting == "ring" => Err(ProbeError::SocketRings(why)),
        Err(why) => {
            warn!("sockets are served by glommio, which takes more CPU: {why}");
            Ok(false)
        }
    }
}

/// Checks that executors can lock the memory of their rings.
pub(super) fn locked_memory() -> Result<(), ProbeError> {
    let limit = raise(libc::RLIMIT_MEMLOCK)?;
    if limit < MIN_LOCKED_BYTES {
        return Err(ProbeError::LockedMemory { limit });
    }
    Ok(())
}

/// Raises the limit on open files as far as it goes; returns how many clients fit beside the files of the log.
pub(super) fn open_files(maxclients: u64, log_files: u64) -> Result<u64, ProbeError> {
    let limit = raise(libc::RLIMIT_NOFILE)?;
    let reserved = RESERVED_FILES + log_files;
    if limit <= reserved {
        return Err(ProbeError::OpenFiles { limit, reserved });
    }
    let clients = maxclients.min(limit - reserved);
    if clients < maxclients {
        warn!(
            "maxclients is lowered from {maxclients} to {clients}: only {limit} files may be open. More: `ulimit -n {}`",
            maxclients.saturating_add(reserved)
        );
    }
    Ok(clients)
}

fn ring_error(error: io::Error, disabled: &str) -> ProbeError {
    match (error.raw_os_error(), disabled) {
        (Some(libc::ENOSYS), _) => ProbeError::NoIoUring {
            kernel: crate::process::operating_system(),
        },
        (Some(libc::EPERM | libc::EACCES), "1" | "2") => ProbeError::IoUringForbidden {
            error,
            remedy: format!(
                "The administrator has switched it off (kernel.io_uring_disabled = {disabled}): \
                 `sysctl -w kernel.io_uring_disabled=0`, also on the host of a container."
            ),
        },
        (Some(libc::EPERM | libc::EACCES), _) => ProbeError::IoUringForbidden {
            error,
            remedy: "A security profile blocks it, most likely a container's seccomp profile: `docker run --security-opt \
                     seccomp=unconfined ...`, or a profile that allows io_uring_setup, io_uring_enter and io_uring_register."
                .to_owned(),
        },
        (Some(libc::ENOMEM), _) => ProbeError::LockedMemory {
            limit: raise(libc::RLIMIT_MEMLOCK).unwrap_or(0),
        },
        _ => ProbeError::IoUring(error),
    }
}

/// Raises the soft limit to the hard one; returns what holds now.
fn raise(resource: libc::__rlimit_resource_t) -> Result<u64, ProbeError> {
    let mut limit = MaybeUninit::<libc::rlimit>::zeroed();
    // SAFETY: `getrlimit` fills the structure it is given; all-zero bytes are a valid one.
    let mut limit = unsafe {
        if libc::getrlimit(resource, limit.as_mut_ptr()) != 0 {
            return Err(ProbeError::Limit(io::Error::last_os_error()));
        }
        limit.assume_init()
    };
    let soft = limit.rlim_cur;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `setrlimit` only reads the structure.
    let raised = unsafe { libc::setrlimit(resource, &limit) } == 0;
    if raised && soft < limit.rlim_max {
        info!("limit {resource} raised from {soft} to {}", limit.rlim_max);
    }
    Ok(if raised { limit.rlim_max } else { soft })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_names_its_remedy() {
        let said = |errno: i32, disabled: &str| {
            ring_error(io::Error::from_raw_os_error(errno), disabled).to_string()
        };
        assert!(said(libc::ENOSYS, "").contains("5.8"));
        assert!(said(libc::EPERM, "2").contains("sysctl -w kernel.io_uring_disabled=0"));
        assert!(said(libc::EPERM, "0").contains("--security-opt"));
        assert!(said(libc::ENOMEM, "0").contains("ulimit -l unlimited"));
        assert!(said(libc::EINVAL, "0").contains("Invalid argument"));
    }

    #[test]
    fn without_rings_for_sockets_glommio_serves_them_unless_told_otherwise() {
        let none = || Err("no rings".to_owned());
        assert!(socket_rings("auto", || Ok(())).unwrap());
        assert!(socket_rings("ring", || Ok(())).unwrap());
        assert!(!socket_rings("auto", none).unwrap());
        assert!(!socket_rings("glommio", || panic!("nobody asks the kernel")).unwrap());
        let error = socket_rings("ring", none).unwrap_err().to_string();
        assert!(
            error.contains("no rings") && error.contains("sockets auto"),
            "{error}"
        );
    }

    #[test]
    fn clients_fit_into_the_open_files() {
        let clients = open_files(u64::MAX, 0).unwrap();
        assert!(clients > 0 && clients < u64::MAX);
        assert_eq!(open_files(u64::MAX, 5).unwrap(), clients - 5);
        assert_eq!(open_files(1, 0).unwrap(), 1);
    }
}

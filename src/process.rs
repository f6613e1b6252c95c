//! What the operating system knows about this process.

use std::fs;
use std::mem::MaybeUninit;

use shard::error::CommandError;
use shard::input::ProcessFigures;

/// Figures of the process as INFO shows them; what the system does not tell is 0.
pub fn figures() -> ProcessFigures {
    let usage = resource_usage();
    ProcessFigures {
        resident_bytes: resident_bytes().unwrap_or(0),
        cpu_system_s: seconds(usage.ru_stime),
        cpu_user_s: seconds(usage.ru_utime),
    }
}

/// Operating system, release and machine, as `uname` gives them.
pub fn operating_system() -> String {
    let mut name = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: `uname` fills the structure it is given; all-zero bytes are a valid one.
    let name = unsafe {
        libc::uname(name.as_mut_ptr());
        name.assume_init()
    };
    [&name.sysname[..], &name.release[..], &name.machine[..]]
        .map(text)
        .join(" ")
}

/// The system's page size.
fn page_bytes() -> u64 {
    // SAFETY: a plain query without arguments in memory.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

fn resident_bytes() -> Option<u64> {
    let sizes = fs::read_to_string("/proc/self/statm").ok()?;
    let resident_pages: u64 = sizes.split_ascii_whitespace().nth(1)?.parse().ok()?;
    Some(resident_pages * page_bytes())
}

fn resource_usage() -> libc::rusage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `getrusage` fills the structure it is given; all-zero bytes are a valid one.
    unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    }
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

fn text(field: &[libc::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&c| c as u8)
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_a_living_process() {
        let figures = figures();
        assert!(figures.resident_bytes > 1 << 20, "{figures:?}");
        assert!(figures.cpu_user_s + figures.cpu_system_s < 1e6, "{figures:?}");
        assert!(operating_system().starts_with("Linux "));
    }
}

/// Whether there is such a folder.
pub fn check_folder(path: &str) -> Result<(), CommandError> {
    let refused = |why: String| {
        let text = format!(
            "CONFIG SET failed (possibly related to argument 'dir') - {}: {why}",
            path.escape_default()
        );
        Err(CommandError::other(text))
    };
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => refused("not a folder".to_owned()),
        Err(error) => refused(error.to_string()),
    }
}

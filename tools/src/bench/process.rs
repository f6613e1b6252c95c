//! What a process uses, as the operating system tells it: CPU time and memory.
//!
//! The server under test is asked for its process number and then watched from outside,
//! so the figures need not be believed from the server itself. That works only where it runs on this machine
//! and in the same process namespace; elsewhere a report has no such figures.

use std::io;

use serde::Serialize;

use super::control::field_of;

/// A process of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    id: u32,
}

/// What a process has used so far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// User and system time, in all threads.
    pub cpu_seconds: f64,
    /// Resident memory now.
    pub resident_bytes: u64,
    /// Most resident memory ever.
    pub resident_peak_bytes: u64,
}

impl Process {
    /// This process.
    pub fn own() -> Self {
        Self {
            id: std::process::id(),
        }
    }

    /// The process whose number a server tells behind `field`, if it can be watched.
    pub fn named(text: &str, field: &str) -> Option<Self> {
        let id = field_of(text, field)?.parse().ok()?;
        Some(Self { id }).filter(|process| process.usage().is_ok())
    }

    /// What several have used together; nothing for none.
    pub fn usage_of(processes: &[Self]) -> io::Result<Option<Usage>> {
        let mut sum: Option<Usage> = None;
        for process in processes {
            let usage = process.usage()?;
            sum = Some(sum.map_or(usage, |sum| Usage {
                cpu_seconds: sum.cpu_seconds + usage.cpu_seconds,
                resident_bytes: sum.resident_bytes + usage.resident_bytes,
                resident_peak_bytes: sum.resident_peak_bytes + usage.resident_peak_bytes,
            }));
        }
        Ok(sum)
    }

    /// What it has used.
    pub fn usage(self) -> io::Result<Usage> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id))?;
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id))?;
        let ticks = cpu_ticks(&stat).ok_or_else(|| io::Error::other("no CPU times in /proc/PID/stat"))?;
        let bytes = |field| {
            kibibytes(&status, field)
                .map(|kib| kib * 1024)
                .ok_or_else(|| io::Error::other(format!("no {field} in /proc/PID/status")))
        };
        Ok(Usage {
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            resident_bytes: bytes("VmRSS")?,
            resident_peak_bytes: bytes("VmHWM")?,
        })
    }
}

/// User plus system time. The process' name, in parentheses, may itself hold blanks and parentheses.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut times = behind_name
        .split_ascii_whitespace()
        .skip(11)
        .map_while(|word| word.parse::<u64>().ok());
    Some(times.next()? + times.next()?)
}

fn kibibytes(status: &str, field: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_are_read_right() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 99 0 1 0 700 55 3 4 20 0 5 0 1234 5678 90";
        assert_eq!(cpu_ticks(stat), Some(755));
        assert_eq!(cpu_ticks("42 (short) S 1"), None);
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(kibibytes(status, "VmRSS"), Some(1024));
        assert_eq!(kibibytes(status, "VmHWM"), Some(2048));
        assert_eq!(kibibytes(status, "VmSwap"), None);
    }

    #[test]
    fn a_process_is_found_by_its_number() {
        let text = |id: u32| format!("# Server\r\nprocess_id:{id}\r\nrun_id:x\r\n");
        let own = Process::own();
        assert_eq!(Process::named(&text(own.id), "process_id:"), Some(own));
        assert_eq!(
            Process::named(&format!("---\npid: {}\n", own.id), "pid:"),
            Some(own)
        );
        assert_eq!(Process::named(&text(u32::MAX), "process_id:"), None);
        assert_eq!(Process::named("# Server\r\n", "process_id:"), None);
    }

    #[test]
    fn this_process_uses_memory() {
        let usage = Process::own().usage().unwrap();
        assert!(usage.resident_bytes > 100_000 && usage.resident_peak_bytes >= usage.resident_bytes);
    }
}

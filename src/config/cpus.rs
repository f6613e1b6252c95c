//! Which CPUs the shards run on: those that `cpus` names, among those that the process may use.

use std::mem::MaybeUninit;

/// The CPUs that the process may use, in order.
pub fn allowed() -> Vec<usize> {
    let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: the set has the size that is given; all-zero bytes are a valid one.
    let set = unsafe {
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) != 0 {
            return vec![0];
        }
        set.assume_init()
    };
    let capacity = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
    // SAFETY: `CPU_ISSET` reads within the set for numbers below its size.
    (0..capacity)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect()
}

/// Reads a list like `0-3,8` and checks it against what is allowed; the empty list is all of that.
pub fn choose(list: &str, allowed: &[usize]) -> Result<Vec<usize>, String> {
    if list.trim().is_empty() {
        return Ok(allowed.to_vec());
    }
    let mut chosen = Vec::new();
    for part in list.split(',').map(str::trim) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (Ok(from), Ok(to)) = (from.trim().parse::<usize>(), to.trim().parse::<usize>()) else {
            return Err(format!(
                "'{}' is no CPU or range of CPUs; an example: 0-3,8",
                part.escape_default()
            ));
        };
        if from > to {
            return Err(format!("the range '{part}' is empty"));
        }
        let last = allowed.last().copied().unwrap_or(0);
        for cpu in from..=to {
            if cpu > last || !allowed.contains(&cpu) {
                return Err(format!(
                    "CPU {cpu} is not among those that this process may use ({})",
                    show(allowed)
                ));
            }
            if !chosen.contains(&cpu) {
                chosen.push(cpu);
            }
        }
    }
    Ok(chosen)
}

/// A list of CPUs in the form that [`choose`] reads.
pub fn show(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, to)) if *to + 1 == cpu => *to = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let parts = ranges.into_iter().map(|(from, to)| {
        if from == to {
            from.to_string()
        } else {
            format!("{from}-{to}")
        }
    });
    parts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let allowed: Vec<usize> = (0..12).filter(|cpu| *cpu != 5).collect();
        assert_eq!(choose("", &allowed).as_ref(), Ok(&allowed));
        assert_eq!(choose("8, 0-3,2", &allowed), Ok(vec![8, 0, 1, 2, 3]));
        for bad in ["x", "1-", "3-1", "4-6", "12", "0-99999999999999999", "1,,2"] {
            assert!(choose(bad, &allowed).is_err(), "{bad}");
        }
        assert_eq!(show(&[0, 1, 2, 4, 7, 8]), "0-2,4,7-8");
    }

    #[test]
    fn this_process_may_use_a_cpu() {
        assert!(!allowed().is_empty());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Waiting for the program's runs that are under way: the kernel half of a grace period.
//!
//! The plain way is `membarrier(MEMBARRIER_CMD_GLOBAL)`, which is synchronize_rcu: right everywhere, and 8–20 ms long. A commit
//! needs two, so that at most some sixty commits a second would pass.
//!
//! The fast way: XDP runs inside softirqs, with bottom halves disabled, and such a section cannot be preempted. So while
//! this thread runs on a CPU, no run of the program is under way there. Visiting every CPU once (sched_setaffinity,
//! then this thread is running there) therefore waits for all runs that began before: the classic synchronize_sched. It
//! takes some tens of microseconds a CPU, or a scheduling delay where the CPU is busy.
//!
//! It is not used where the argument does not hold: PREEMPT_RT (softirqs are preemptible), CPUs outside this thread's
//! cpuset, more than [`VISITS_MAX`] CPUs. BPF_PROG_TEST_RUN on kernels before 6.9 with full preemption may be preempted in the middle
//! of a run, too; it is no packet path. The order of memory: a thread switch on each CPU is a full barrier there.

use std::io;
use std::sync::OnceLock;

/// With more CPUs than this, one synchronize_rcu is about as fast.
const VISITS_MAX: usize = 128;

/// Waits. `other` is the last way out, when the kernel offers no membarrier either.
pub(crate) fn wait(other: impl FnOnce() -> io::Result<()>) {
    if !(visiting_is_sound() && visit_all().is_ok()) && membarrier().is_err() {
        other().expect("no way to wait for an RCU grace period: neither membarrier nor map updates work");
    }
}

fn membarrier() -> io::Result<()> {
    const CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: a system call without memory operands.
    match unsafe { libc::syscall(libc::SYS_membarrier, CMD_GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether softirqs cannot be preempted on this kernel.
fn visiting_is_sound() -> bool {
    static SOUND: OnceLock<bool> = OnceLock::new();
    *SOUND.get_or_init(|| {
        let realtime = std::fs::read_to_string("/sys/kernel/realtime").is_ok_and(|s| s.trim() == "1");
        let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
        !realtime && !version.contains("PREEMPT_RT") && !version.is_empty()
    })
}

/// CPUs that are online, from a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

/// Puts this thread on every online CPU in turn, and back. An error: some CPU could not be visited.
fn visit_all() -> io::Result<()> {
    // Read each time: CPUs come and go. One that comes online now begins with no run under way.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let cpus = parse_cpus(&online).filter(|c| c.len() <= VISITS_MAX).ok_or(io::ErrorKind::Unsupported)?;
    let before = affinity()?;
    let mut result = Ok(());
    for cpu in cpus {
        if cpu >= libc::CPU_SETSIZE as usize {
            result = Err(io::ErrorKind::Unsupported.into());
            break;
        }
        // SAFETY: an all-zero cpu_set_t is the empty set, and `cpu` is below its size.
        let set = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            set
        };
        // sched_setaffinity returns when this thread runs on an allowed CPU; a cpuset may have narrowed the set.
        // SAFETY: sched_getcpu has no operands.
        if let Err(e) = set_affinity(&set).and_then(|()| match unsafe { libc::sched_getcpu() } {
            at if at == cpu as i32 => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }) {
            result = Err(e);
            break;
        }
    }
    set_affinity(&before)?;
    result
}

fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: the kernel fills a set of the stated size; zeroes are an empty set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) {
            0 => Ok(set),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the set is valid and of the stated size.
    match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_cpus("0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(parse_cpus("5"), Some(vec![5]));
        assert_eq!(parse_cpus("x"), None);
    }

    #[test]
    fn visiting_leaves_the_thread_where_it_may_run() {
        let before = affinity().unwrap();
        if let Err(e) = visit_all() {
            skip::test(
                format_args!("some CPU may not be visited: {e}"),
                "run it where all CPUs are allowed (taskset, cpuset)",
            );
        }
        // SAFETY: both are plain sets.
        assert!(unsafe { libc::CPU_EQUAL(&before, &affinity().unwrap()) });
    }

    #[test]
    fn a_wait_ends() {
        wait(|| Ok(()));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! CPUs and threads: pinning, CPU time, scheduling. Rates are taken per second of CPU time, not of wall time, so that other
//! work on the machine disturbs them as little as possible.
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of CPUs of the machine, whatever the calling thread is pinned to.
pub fn count() -> usize {
    // SAFETY: plain library call.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize
}

/// Runs something and gives the calling thread its CPUs back afterwards, if it was pinned meanwhile.
pub fn unpinned_after<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero cpu_set_t is an empty set, which the kernel fills in.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: plain system call with a structure of the size given.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } == 0;
    let result = work();
    if known {
        // SAFETY: as above; the set is the one that the kernel gave.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    }
    result
}

/// Pins a thread (0: the calling one) to a CPU.
pub fn pin(thread: i32, cpu: usize) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is an empty set; CPU_SET stays in bounds for the CPUs of any machine here.
    let rc = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set)
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives a thread the real-time policy FIFO at this priority (1 is the lowest), so that it runs as soon as it has work.
pub fn prefer(thread: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: plain system call with a valid structure.
    if unsafe { libc::sched_setscheduler(thread, libc::SCHED_FIFO, &parameters) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The same for several threads of which some may have ended.
pub fn prefer_all(threads: &[i32], priority: i32) -> io::Result<()> {
    threads.iter().try_for_each(|thread| match prefer(*thread, priority) {
        // It was only for the start.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    })
}

/// Sets the nice value of a thread (−20 to 19).
pub fn nice(thread: i32, value: i32) -> io::Result<()> {
    // SAFETY: plain system call.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Lets this process have at least so many files open, if it may.
pub fn open_files(least: u64) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls with a valid structure.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) < 0 {
            return Err(io::Error::last_os_error());
        }
        if limit.rlim_cur >= least {
            return Ok(());
        }
        let wanted = libc::rlimit { rlim_cur: least, rlim_max: limit.rlim_max.max(least) };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// CPU time of the calling thread, ns.
pub fn thread_time() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// CPU time of any thread, ns, from its schedstat (`process` may be the thread itself).
pub fn run_time(process: i32, thread: i32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"))?;
    text.split(' ').next().and_then(|n| n.parse().ok()).ok_or_else(|| io::Error::other("schedstat has no run time"))
}

/// ns that a thread of this process was ready to run and had no CPU.
pub fn waited(thread: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// The calling thread's number.
pub fn thread_id() -> i32 {
    // SAFETY: plain system call.
    unsafe { libc::gettid() }
}

/// Threads of a process by the beginning of their name.
pub fn threads_named(process: i32, prefix: &str) -> Vec<i32> {
    let dir = PathBuf::from(format!("/proc/{process}/task"));
    let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let id: i32 = e.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(e.path().join("comm")).ok()?;
            name.starts_with(prefix).then_some(id)
        })
        .collect()
}

/// Processes (kernel threads are such) by the beginning of their name.
pub fn processes_named(prefix: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|e| {
            let id: i32 = e.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(e.path().join("comm")).ok()?;
            name.trim_end().starts_with(prefix).then_some(id)
        })
        .collect()
}

/// Asks for the cache line of an address, which need not be valid.
#[inline(always)]
pub fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect but on caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch(at.cast::<i8>(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Waits until `ready` says so; false if it does not within the time.
pub fn wait_for(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if ready() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    ready()
}

/// Date and time, UTC, as ISO 8601.
pub fn utc_now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds as i64 / 86_400, seconds % 86_400);
    // Days to civil date: years are counted from March, so that the leap day comes last.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_uses_cpu_time() {
        let before = thread_time();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        assert!(thread_time() > before);
    }

    #[test]
    fn date_has_the_iso_form() {
        let now = utc_now();
        assert_eq!(now.len(), 20);
        assert!(now.starts_with("20") && now.ends_with('Z'));
    }
}

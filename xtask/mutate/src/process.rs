// SPDX-License-Identifier: Apache-2.0
//! Runs a test program: at low priority, in a process group of its own, with limits, and no longer than its first failure.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Memory that a test may write to; a mutant that grows without limit ends here, not with the machine.
const MEMORY_MAX: u64 = 6 << 30;

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All tests passed.
    Passed,
    /// A test failed: its name.
    Failed(String),
    /// The process was ended by a signal or with another status.
    Died(String),
    /// More CPU time than allowed.
    Cpu,
    /// More time than allowed, and it does not even wait for the CPU.
    Wall,
}

/// A finished run.
pub struct Run {
    /// How it ended.
    pub end: End,
    /// CPU time of it and the children it waited for.
    pub cpu: Duration,
}

/// Runs a command that prints as libtest does.
pub fn run(command: &mut Command, cpu_limit: Duration, wall_limit: Duration) -> std::io::Result<Run> {
    let seconds = cpu_limit.as_secs_f64().ceil() as u64;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: between fork and exec only system calls, no allocation.
    unsafe {
        command.pre_exec(move || {
            libc::setpgid(0, 0);
            libc::setpriority(libc::PRIO_PROCESS, 0, 19);
            let limit = |what, n: u64| libc::setrlimit(what, &libc::rlimit { rlim_cur: n, rlim_max: n + 1 });
            limit(libc::RLIMIT_CPU, seconds.max(1));
            limit(libc::RLIMIT_DATA, MEMORY_MAX);
            limit(libc::RLIMIT_CORE, 0);
            Ok(())
        });
    }
    let begin = Instant::now();
    let mut child = command.spawn()?;
    let pid = child.id() as i32;
    let (sender, receiver) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        std::thread::spawn(move || BufReader::new(out).lines().map_while(Result::ok).all(|l| sender.send(l).is_ok()));
    }
    let mut end = None;
    loop {
        let left = wall_limit.saturating_sub(begin.elapsed()).max(Duration::from_secs(1));
        match receiver.recv_timeout(left) {
            Ok(line) => {
                if let Some(test) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
                    end = Some(End::Failed(test.into()));
                    break;
                }
            }
            // On a busy machine a test of low priority waits for the CPU, which is no standstill.
            Err(mpsc::RecvTimeoutError::Timeout) if wants_cpu(pid) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                end = Some(End::Wall);
                break;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    if end.is_some() {
        // SAFETY: the group of a child that was not waited for.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
    let (status, cpu) = wait(pid);
    // What it left behind goes with it.
    // SAFETY: the group of a process that this one started; nobody else can have its number as long as members live.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
    let end = end.unwrap_or_else(|| match status {
        s if libc::WIFEXITED(s) && libc::WEXITSTATUS(s) == 0 => End::Passed,
        s if libc::WIFSIGNALED(s) && libc::WTERMSIG(s) == libc::SIGXCPU => End::Cpu,
        s if libc::WIFSIGNALED(s) && libc::WTERMSIG(s) == libc::SIGKILL && cpu >= cpu_limit => End::Cpu,
        s if libc::WIFSIGNALED(s) => End::Died(format!("signal {}", libc::WTERMSIG(s))),
        s => End::Died(format!("status {}", libc::WEXITSTATUS(s))),
    });
    Ok(Run { end, cpu })
}

/// Whether a process of this group runs, or would if it were let, at any of many looks.
fn wants_cpu(group: i32) -> bool {
    (0..50).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        processes.flatten().any(|p| {
            let Ok(stat) = std::fs::read_to_string(p.path().join("stat")) else { return false };
            // Behind the name: state, parent, group.
            let mut fields = stat.rsplit(") ").next().unwrap_or("").split(' ');
            let (_, Some(own)) = (fields.next(), fields.nth(1).and_then(|g| g.parse::<i32>().ok())) else {
                return false;
            };
            let running = |t: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(t.path().join("stat")).unwrap_or_default();
                matches!(stat.rsplit(") ").next().and_then(|s| s.chars().next()), Some('R' | 'D'))
            };
            own == group && std::fs::read_dir(p.path().join("task")).is_ok_and(|tasks| tasks.flatten().any(running))
        })
    })
}

fn wait(pid: i32) -> (i32, Duration) {
    let mut status = 0;
    // SAFETY: plain old data, filled by the kernel.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to locals.
    while unsafe { libc::wait4(pid, &mut status, 0, &mut usage) } < 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    (status, time(usage.ru_utime) + time(usage.ru_stime))
}

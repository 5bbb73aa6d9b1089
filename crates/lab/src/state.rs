// SPDX-License-Identifier: Apache-2.0
//! What the lab has started, on disk, so that another process can remove it: after a crash, Ctrl-C, or days later.
//!
//! A process is recorded with its start time, and ended only if both still fit: process ids are used again.

use crate::LabError;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A process that the lab has started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What it is.
    pub what: String,
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot, from /proc/PID/stat.
    pub start: u64,
}

/// The contents of `state.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Names of all namespaces, written before the first of them is made.
    pub namespaces: Vec<String>,
    /// Background processes.
    pub processes: Vec<Process>,
    /// MTU of the underlay now.
    pub mtu: u32,
}

/// Field 22 of /proc/PID/stat; none if there is no such process, or it is a zombie.
pub fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything: fields are counted from the last parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    (fields.first() != Some(&"Z")).then(|| fields.get(19)?.parse().ok())?
}

impl Process {
    /// Records a running process.
    pub fn record(what: &str, pid: u32) -> Process {
        Process { what: what.to_string(), pid: pid as i32, start: start_time(pid as i32).unwrap_or(0) }
    }

    /// Whether this very process still runs.
    pub fn alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Ends it: politely, then after `patience` by force.
    pub fn end(&self, patience: Duration) {
        if !self.alive() {
            return;
        }
        let pid = Pid::from_raw(self.pid);
        // It may end by itself in between; then there is nothing to do.
        let _ = kill(pid, Signal::SIGTERM);
        let begun = Instant::now();
        while self.alive() && begun.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.alive() {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// Ends it at once, without a chance to clean up.
    pub fn kill(&self) {
        if self.alive() {
            let _ = kill(Pid::from_raw(self.pid), Signal::SIGKILL);
        }
    }
}

impl State {
    /// Where the state of a lab lies.
    pub fn path(dir: &Path) -> PathBuf {
        dir.join("state.json")
    }

    /// Reads it; none if there is none, or it makes no sense.
    pub fn load(dir: &Path) -> Option<State> {
        serde_json::from_slice(&std::fs::read(Self::path(dir)).ok()?).ok()
    }

    /// Writes it, whole or not at all.
    pub fn save(&self, dir: &Path) -> Result<(), LabError> {
        let path = Self::path(dir);
        let fail = |source| LabError::File { path: path.clone(), source };
        std::fs::create_dir_all(dir).map_err(fail)?;
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec_pretty(self).unwrap_or_default()).map_err(fail)?;
        std::fs::rename(&new, &path).map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_time() {
        let me = Process::record("test", std::process::id());
        assert!(me.alive());
        assert!(!Process { start: me.start + 1, ..me.clone() }.alive());
        assert!(!Process { pid: i32::MAX, ..me }.alive());
    }

    #[test]
    fn an_impostor_is_not_killed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let mut record = Process::record("sleep", child.id());
        record.start += 1;
        record.end(Duration::ZERO);
        record.kill();
        assert!(child.try_wait().unwrap().is_none(), "ended a process with another start time");
        record.start -= 1;
        record.end(Duration::from_secs(5));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn state_survives_the_disk() {
        let dir = std::env::temp_dir().join(format!("tny-state-{}", std::process::id()));
        let state = State { namespaces: vec!["a".into()], processes: vec![Process::record("x", 1)], mtu: 1500 };
        state.save(&dir).unwrap();
        assert_eq!(State::load(&dir), Some(state));
        std::fs::write(State::path(&dir), "{").unwrap();
        assert_eq!(State::load(&dir), None);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What the daemon and the watchdog tell each other, by files beside the API socket, which go with a restart of the machine.

use super::kernel::{Marks, Port};
use crate::counters::monotonic_ns;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Who has not been heard for so long hangs.
const SILENCE: Duration = Duration::from_secs(5);

/// A process, and when it was heard last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Beat {
    pid: i32,
    /// Milliseconds of the monotonic clock.
    at_ms: u64,
}

fn now_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

impl Beat {
    /// This process, now.
    pub fn now() -> Beat {
        Beat { pid: std::process::id() as i32, at_ms: now_ms() }
    }

    /// How long ago it was heard.
    pub fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.at_ms))
    }

    /// Whether it runs and speaks. If its number came again it lives until it has been silent for too long.
    pub fn lives(&self) -> bool {
        // Not by /proc, which hides processes of other rights.
        let runs = self.pid > 0 && kill(Pid::from_raw(self.pid), None) != Err(nix::errno::Errno::ESRCH);
        runs && self.age() < SILENCE
    }
}

/// What the watchdog needs to know of a daemon that announces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    pub beat: Beat,
    pub marks: Marks,
    /// Seconds.
    pub grace: u16,
    /// Seconds.
    pub hold: u32,
    pub ports: Vec<Port>,
    /// The fast path goes on without the daemon.
    pub outlives: bool,
}

/// A withdrawal that the daemon did not see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Withdrawal {
    pub time_ms: u64,
    pub prefix: String,
    pub state: String,
    pub reason: String,
}

/// The files beside a socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    socket: PathBuf,
}

impl Files {
    pub fn next_to(socket: &Path) -> Files {
        Files { socket: socket.into() }
    }

    fn file(&self, end: &str) -> PathBuf {
        let mut name = OsString::from(&self.socket);
        name.push(end);
        name.into()
    }

    fn notice_file(&self) -> PathBuf {
        self.file(".announce")
    }

    fn watchdog_file(&self) -> PathBuf {
        self.file(".watchdog")
    }

    fn withdrawals_file(&self) -> PathBuf {
        self.file(".withdrawn")
    }

    /// What the daemon said last; none: nothing is announced.
    pub fn notice(&self) -> Option<Notice> {
        read(&self.notice_file())
    }

    pub fn set_notice(&self, notice: &Notice) -> std::io::Result<()> {
        write(&self.notice_file(), notice)
    }

    pub fn forget_notice(&self) {
        let _ = std::fs::remove_file(self.notice_file());
    }

    /// Whether a watchdog runs.
    pub fn watched(&self) -> bool {
        read::<Beat>(&self.watchdog_file()).is_some_and(|beat| beat.lives())
    }

    pub fn watch(&self) -> std::io::Result<()> {
        write(&self.watchdog_file(), &Beat::now())
    }

    pub fn unwatch(&self) {
        let _ = std::fs::remove_file(self.watchdog_file());
    }

    /// Leaves withdrawals to the daemon.
    pub fn leave(&self, withdrawals: &[Withdrawal]) -> std::io::Result<()> {
        let mut text = String::new();
        for withdrawal in withdrawals {
            text += &(serde_json::to_string(withdrawal)? + "\n");
        }
        let file = std::fs::File::options().create(true).append(true).open(self.withdrawals_file());
        file?.write_all(text.as_bytes())
    }

    /// What was left since.
    pub fn take_withdrawals(&self) -> Vec<Withdrawal> {
        let (from, taken) = (self.withdrawals_file(), self.file(".withdrawn.taken"));
        if std::fs::rename(&from, &taken).is_err() {
            return Vec::new();
        }
        let text = std::fs::read_to_string(&taken).unwrap_or_default();
        let _ = std::fs::remove_file(&taken);
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn write(path: &Path, value: &impl Serialize) -> std::io::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    std::fs::write(&new, serde_json::to_vec(value)?)?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_or_silent_does_not_live() {
        let beat = Beat::now();
        assert!(beat.lives() && !Beat::default().lives());
        assert!(!Beat { at_ms: beat.at_ms.saturating_sub(SILENCE.as_millis() as u64 + 1), ..beat.clone() }.lives());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = Beat { pid: child.id() as i32, ..beat };
        assert!(other.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!other.lives());
    }

    #[test]
    fn withdrawals_are_taken_once() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::next_to(&dir.path().join("x.sock"));
        assert!(files.notice().is_none() && !files.watched() && files.take_withdrawals().is_empty());
        files.watch().unwrap();
        assert!(files.watched());
        files.unwatch();
        assert!(!files.watched());
        let one = Withdrawal { prefix: "192.0.2.1/32".into(), ..Withdrawal::default() };
        files.leave(std::slice::from_ref(&one)).unwrap();
        files.leave(std::slice::from_ref(&one)).unwrap();
        assert_eq!(files.take_withdrawals(), [one.clone(), one]);
        assert!(files.take_withdrawals().is_empty());
        let notice = Notice { hold: 7, ..Notice::default() };
        files.set_notice(&notice).unwrap();
        assert_eq!(files.notice(), Some(notice));
        files.forget_notice();
        assert!(files.notice().is_none());
    }
}

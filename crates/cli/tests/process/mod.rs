// SPDX-License-Identifier: Apache-2.0
//! Processes of `tunny` that tests start and end.
#![allow(dead_code)] // Each test file uses a part.

use super::terminal::TUNNY;
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

/// A process that says on standard error what it does; killed at the end.
pub struct Daemon {
    child: Child,
    pub log: Arc<Mutex<String>>,
}

impl Daemon {
    /// Starts one, and waits until it listens.
    pub fn start(dir: &Path, words: &[&str]) -> Daemon {
        let mut command = Command::new(TUNNY);
        let mut child = command.args(words).current_dir(dir).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{words:?} ended at once: {said}");
        }
        let log = Arc::new(Mutex::new(said));
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                kept.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Daemon { child, log }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Ends it at once.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log.lock().unwrap());
        }
    }
}

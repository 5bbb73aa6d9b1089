// SPDX-License-Identifier: Apache-2.0
//! Processes of `tunny` that tests start and end.
#![allow(dead_code)] // Each test file uses a part.

use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

/// A port of this machine that nobody listens at.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a region in the folder `region` of a folder, and starts its controller, which `region/controller.yaml` starts again: that, and where
/// it listens.
pub fn begin_region(dir: &Path, name: &str) -> (Daemon, String) {
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let words = ["controller", "init", "region", "--region", name, "--listen", &listen];
    let out = Command::new(TUNNY).args(words).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    (Daemon::start(dir, &["controller", "--config", "region/controller.yaml"]), format!("https://localhost:{port}"))
}

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
        kill(Pid::from_raw(self.id() as i32), signal).unwrap();
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
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

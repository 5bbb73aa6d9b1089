// SPDX-License-Identifier: Apache-2.0
//! A node without ports, and commands that talk on a terminal.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

pub fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml")
}

/// A node in a folder of its own, with the example; killed at the end.
pub struct Node {
    pub dir: TempDir,
    pub child: Child,
    pub log: Arc<Mutex<String>>,
}

impl Node {
    pub fn start() -> Node {
        Node::with(&["--config", example().to_str().unwrap()])
    }

    pub fn with(more: &[&str]) -> Node {
        Node::in_dir(tempfile::tempdir().unwrap(), more)
    }

    pub fn in_dir(dir: TempDir, more: &[&str]) -> Node {
        let engine = ["node", "--instance", "talk", "--engine", "none", "--socket", "s", "--state", "state"];
        let mut command = Command::new(TUNNY);
        command.args(engine).args(more).current_dir(dir.path()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut reader = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            assert!(reader.read_line(&mut said).unwrap() > 0, "the node ended at once: {said}");
        }
        let log = Arc::new(Mutex::new(said));
        let heard = log.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 0) {
                heard.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Node { dir, child, log }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(TUNNY);
        command.args(words).current_dir(self.dir.path()).env("TUNNY_SOCKET", self.socket());
        command
    }

    /// What a command says that must succeed.
    pub fn said(&self, words: &[&str]) -> String {
        let out = self.command(words).stdin(Stdio::null()).output().unwrap();
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Waits until the log says something.
    pub fn wait_for(&self, what: &str) {
        let begun = Instant::now();
        while !self.log.lock().unwrap().contains(what) {
            assert!(begun.elapsed() < Duration::from_secs(20), "never said `{what}`: {}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command whose standard input is a terminal.
pub struct Talk {
    child: Child,
    terminal: std::fs::File,
    said: Arc<Mutex<String>>,
    /// What was waited for already.
    seen: usize,
}

impl Talk {
    pub fn begin(node: &Node, words: &[&str]) -> Talk {
        let pty = nix::pty::openpty(None, None).unwrap();
        // One pipe for both outputs, as on a terminal: what is printed first is read first.
        let (mut output, into) = std::io::pipe().unwrap();
        let mut command = node.command(words);
        command.stdin(Stdio::from(pty.slave)).stdout(into.try_clone().unwrap()).stderr(into);
        let child = command.spawn().unwrap();
        drop(command);
        let said = Arc::new(Mutex::new(String::new()));
        let heard = said.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Talk { child, terminal: pty.master.into(), said, seen: 0 }
    }

    /// Waits until the command says something that it has not said before.
    pub fn wait(&mut self, what: &str) {
        let begun = Instant::now();
        loop {
            let said = self.said();
            if let Some(at) = said[self.seen..].find(what) {
                self.seen += at + what.len();
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "never said `{what}`: {said}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub fn answer(&mut self, text: &str) {
        writeln!(self.terminal, "{text}").unwrap();
    }

    /// The exit status.
    pub fn end(mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

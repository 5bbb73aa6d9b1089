// SPDX-License-Identifier: Apache-2.0
//! An etcd of one member in a folder of its own, for tests.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process.
pub struct EtcdServer {
    dir: tempfile::TempDir,
    client: u16,
    peer: u16,
    child: Option<Child>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl EtcdServer {
    /// Starts one.
    pub fn start() -> EtcdServer {
        let mut server =
            EtcdServer { dir: tempfile::tempdir().unwrap(), client: free_port(), peer: free_port(), child: None };
        server.up();
        server
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Starts it again, and waits until it answers.
    pub fn up(&mut self) {
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer));
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let child = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
        let begun = Instant::now();
        while !self.is_healthy() {
            let log = || std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(30), "etcd does not start: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_healthy(&self) -> bool {
        use std::io::{Read, Write};
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", self.client)) else { return false };
        let mut answer = String::new();
        let sent = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
        sent.is_ok() && stream.read_to_string(&mut answer).is_ok() && answer.contains("\"true\"")
    }

    /// Ends it at once; what it has stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

// SPDX-License-Identifier: Apache-2.0
//! An etcd of one member in a folder of its own, for tests.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The process.
pub struct EtcdServer {
    dir: tempfile::TempDir,
    client: u16,
    peer: u16,
    /// Where it says how it is, which needs no certificate.
    health: u16,
    /// Whether clients need a certificate, by files of its folder.
    tls: bool,
    child: Option<Child>,
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl EtcdServer {
    /// Starts one.
    pub fn start() -> EtcdServer {
        EtcdServer::begin(false, |_| ())
    }

    /// Starts one that speaks TLS with clients that have a certificate; `fill` puts `server.crt`, `server.key` and the clients' `ca.crt`
    /// into its folder.
    #[allow(dead_code)] // Not each test needs one.
    pub fn start_tls(fill: impl FnOnce(&std::path::Path)) -> EtcdServer {
        EtcdServer::begin(true, fill)
    }

    fn begin(tls: bool, fill: impl FnOnce(&std::path::Path)) -> EtcdServer {
        let [client, peer, health] = [(); 3].map(|()| free_port());
        let mut server = EtcdServer { dir: tempfile::tempdir().unwrap(), client, peer, health, tls, child: None };
        fill(server.dir.path());
        server.up();
        server
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("http{}://127.0.0.1:{}", if self.tls { "s" } else { "" }, self.client)
    }

    /// Starts it again, and waits until it answers.
    pub fn up(&mut self) {
        let (client, peer) = (self.url(), format!("http://127.0.0.1:{}", self.peer));
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let mut command = Command::new("etcd");
        if self.tls {
            for (option, file) in
                [("--cert-file", "server.crt"), ("--key-file", "server.key"), ("--trusted-ca-file", "ca.crt")]
            {
                command.arg(option).arg(self.dir.path().join(file));
            }
            command.arg("--client-cert-auth");
        }
        let child = command
            .args(["--name", "one", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-metrics-urls", &format!("http://127.0.0.1:{}", self.health)])
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
        let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", self.health)) else { return false };
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

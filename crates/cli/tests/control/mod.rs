// SPDX-License-Identifier: Apache-2.0
//! A controller beside the lab's router, and nodes in rooms of their own that follow it: they have their Gateways in files, and nothing else.
#![allow(dead_code)] // Each test file is a crate of its own and uses what it needs.

use super::bgp::Room;
use super::region::{wait_long, Region};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");
/// Where the controller is.
pub const CONTROLLER: &str = "198.18.0.99";
/// A program in a namespace, which ends with this.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node that follows the controller.
pub struct Node {
    _running: Running,
    socket: PathBuf,
    pub room: Room,
}

impl Node {
    /// The program, against this node.
    pub fn tunny(&self, words: &[&str]) -> Option<String> {
        let out = Command::new(TUNNY).arg("--socket").arg(&self.socket).args(words).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    }

    /// Kinds and names of what it holds.
    pub fn holds(&self) -> Vec<String> {
        let list: Vec<Value> = serde_json::from_str(&self.tunny(&["get", "all", "-o", "json"]).unwrap()).unwrap();
        let name = |o: &Value| o["metadata"]["name"].as_str().unwrap_or("-").to_string();
        list.iter().map(|o| format!("{} {}", o["kind"].as_str().unwrap(), name(o))).collect()
    }

    pub fn counters(&self) -> Value {
        node::client::Client::new(&self.socket).unwrap().get("/v1/counters").unwrap()
    }

    pub fn drops(&self, reason: &str) -> u64 {
        self.counters()["total"]["drops"][reason].as_u64().unwrap_or(0)
    }

    pub fn forwarded(&self) -> u64 {
        self.counters()["total"]["forwarded"].as_u64().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for what in [&["get", "status"][..], &["get", "edgeports"], &["get", "overlays"], &["get", "counters"]] {
                eprintln!("{}: {what:?}: {}", self.room.0 .0, self.tunny(what).unwrap_or_default());
            }
        }
        let _ = self._running.0.kill();
        let _ = self._running.0.wait();
        let _ = std::fs::remove_dir_all(format!("/sys/fs/bpf/tunny/{}", self.room.0 .0));
    }
}

/// A controller in the namespace of the underlay's router.
pub struct Control {
    dir: tempfile::TempDir,
    pub net: lab::shell::Namespace,
    running: Running,
}

fn url() -> String {
    format!("https://{CONTROLLER}:6474")
}

impl Control {
    pub fn start(region: &Region) -> Control {
        let (dir, net) = (tempfile::tempdir().unwrap(), region.ns("net"));
        net.run(&format!("ip addr add {CONTROLLER}/32 dev lo")).unwrap();
        let at = |file: &str| dir.path().join(file).display().to_string();
        let init = ["controller", "init", &at("ctl"), "--region", "north", "--name", CONTROLLER];
        net.run_argv(&[&[TUNNY], &init[..]].concat()).unwrap();
        let argv = [TUNNY, "controller", "--config", &at("ctl/controller.yaml")];
        let running = Running(net.spawn(&argv, &dir.path().join("ctl.log")).unwrap());
        let control = Control { dir, net, running };
        wait_long("the controller", || control.try_tunny(&["get", "status"]).ok());
        control
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Ends it, and starts it again with these lines more in its file.
    pub fn restart(&mut self, more: &str) {
        let file = self.file("ctl/controller.yaml");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + more).unwrap();
        let _ = self.running.0.kill();
        let _ = self.running.0.wait();
        let argv = [TUNNY, "controller", "--config", &file];
        self.running = Running(self.net.spawn(&argv, &self.dir.path().join("ctl.log")).unwrap());
        wait_long("the controller", || self.try_tunny(&["get", "status"]).ok());
    }

    /// A command of the operator.
    pub fn try_tunny(&self, words: &[&str]) -> Result<String, String> {
        let (ca, cert, key) = (self.file("ctl/ca.crt"), self.file("ctl/operator.crt"), self.file("ctl/operator.key"));
        let url = url();
        let head = [TUNNY, "--server", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
        self.net.run_argv(&[&head[..], words].concat()).map_err(|e| e.to_string())
    }

    pub fn tunny(&self, words: &[&str]) -> String {
        self.try_tunny(words).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    pub fn try_apply(&self, text: &str) -> Result<String, String> {
        let file = self.file("change.yaml");
        std::fs::write(&file, text).unwrap();
        self.try_tunny(&["apply", "--yes", &file])
    }

    pub fn apply(&self, lines: &str) {
        self.try_apply(&documents(lines)).unwrap_or_else(|e| panic!("{lines}: {e}"));
    }

    /// Starts a node in its room.
    pub fn node(&self, name: &str, room: Room, vteps: [&str; 2]) -> Node {
        self.tunny(&["credential", "create", name, "--certificate", "--out", &self.file(name)]);
        let gateway = documents(&format!(
            "kind: Gateway, metadata: {{name: {name}}}, spec: {{vtep: {{ipv4: {}, ipv6: '{}'}}, uplinks: [up0]}}",
            vteps[0], vteps[1]
        ));
        let (config, socket, state) = (
            self.file(&format!("{name}.yaml")),
            self.file(&format!("{name}.sock")),
            self.file(&format!("{name}.state")),
        );
        std::fs::write(&config, gateway).unwrap();
        let (ca, cert, key) =
            (self.file("ctl/ca.crt"), self.file(&format!("{name}.crt")), self.file(&format!("{name}.key")));
        let own =
            [TUNNY, "node", "--instance", &room.0 .0, "--flow-cache", "4", "--socket", &socket, "--state", &state];
        let url = url();
        let more = ["--config", &config, "--controller", &url, "--ca", &ca, "--cert", &cert, "--key", &key];
        let log = self.dir.path().join(format!("{name}.log"));
        let running = Running(room.0.spawn(&[&own[..], &more].concat(), &log).unwrap());
        let node = Node { _running: running, socket: socket.into(), room };
        wait_long(name, || node.tunny(&["get", "status"]));
        node
    }

    /// Waits until every node holds what it should, and has found it in its tables.
    pub fn current(&self) {
        wait_long("current nodes", || {
            let nodes: Vec<Value> = serde_json::from_str(&self.tunny(&["get", "nodes", "-o", "json"])).unwrap();
            let current = |n: &Value| n["state"] == "current" && n["verified"] == n["intent"];
            nodes.iter().all(current).then_some(())
        });
    }
}

pub fn documents(lines: &str) -> String {
    lines.lines().map(|l| format!("{{apiVersion: tunny/v1, {}}}\n", l.trim())).collect::<Vec<_>>().join("---\n")
}

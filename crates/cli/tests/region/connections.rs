// SPDX-License-Identifier: Apache-2.0
//! TCP connections between two VMs of blue that stay open while the node changes, and what the node says of them.

use super::{inside, Region};
use node::client::Client;
use node::states::StatesView;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// blue-2, which serves.
pub const SERVER: &str = "10.0.0.12";
/// Time to the answer on a connection that lives.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Rules by which the VMs of blue reach each other at port 80 alone.
pub const GROUPS: &str = "apiVersion: tunny/v1
kind: SecurityGroup
metadata: {name: web}
spec:
  rules:
  - ingress allow tcp/80 any
  - egress allow any any
---
{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {name: web}, spec: {vpc: blue, prefixes: [10.0.0.0/24], groups: [web]}}
";

/// Serves at a port in this network namespace: every byte comes back.
pub fn echo(address: SocketAddr) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

/// A node's Gateway, changed.
fn changed_gateway(client: &Client, change: impl FnOnce(&mut Value)) -> String {
    let mut gateway = client.list::<Value>("/v1/objects/gateway").unwrap().remove(0);
    gateway["apiVersion"] = "tunny/v1".into();
    change(&mut gateway["spec"]);
    gateway.to_string()
}

/// Opens connections from this network namespace, `pause` apart: those that come about within `patience` each.
pub fn open(to: SocketAddr, n: usize, pause: Duration, patience: Duration) -> Vec<TcpStream> {
    let open = || {
        let stream = TcpStream::connect_timeout(&to, patience).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        std::thread::sleep(pause);
        Some(stream)
    };
    (0..n).filter_map(|_| open()).collect()
}

/// Says a byte on each connection and hears it back.
pub fn talk(connections: &mut [TcpStream], byte: u8, when: &str) {
    for (i, c) in connections.iter_mut().enumerate() {
        let mut got = [0];
        c.write_all(&[byte])
            .and_then(|()| c.read_exact(&mut got))
            .unwrap_or_else(|e| panic!("connection {i} {when}: {e}"));
        assert_eq!(got[0], byte, "connection {i} {when}");
    }
}

impl Region {
    /// Serves at port 80 of blue-2.
    pub fn serve(&self) {
        self.serve_at("blue-2", SocketAddr::new(SERVER.parse().unwrap(), 80));
    }

    /// Serves in a network namespace.
    pub fn serve_at(&self, at: &str, address: SocketAddr) {
        inside(&self.ns(at), move || echo(address)).join().unwrap();
    }

    /// Connections from blue-1 to a port of the server, those that come about.
    pub fn connect(&self, n: usize, port: u16, patience: Duration) -> Vec<TcpStream> {
        self.connect_from("blue-1", SocketAddr::new(SERVER.parse().unwrap(), port), n, patience)
    }

    /// The same from anywhere to anywhere.
    pub fn connect_from(&self, from: &str, to: SocketAddr, n: usize, patience: Duration) -> Vec<TcpStream> {
        // A few at a time are not established, of which a VPC may have an eighth of a state table.
        inside(&self.ns(from), move || open(to, n, Duration::from_millis(10), patience)).join().unwrap()
    }

    /// As many connections to the server as this, all of which come about.
    pub fn connected(&self, n: usize) -> Vec<TcpStream> {
        let open = self.connect(n, 80, PATIENCE);
        assert_eq!(open.len(), n);
        open
    }

    /// Changes the spec of the node's Gateway.
    pub fn change_gateway(&self, change: impl FnOnce(&mut Value)) {
        self.apply(&changed_gateway(&self.client(), change));
    }

    /// Changes the spec of the filter node's Gateway.
    pub fn change_edge(&self, change: impl FnOnce(&mut Value)) {
        self.apply_at_edge(&changed_gateway(&self.edge_client(), change));
    }

    /// The node's Gateway with this `spec.filter`.
    pub fn filter(&self, filter: Value) {
        self.change_gateway(|spec| spec["filter"] = filter);
    }

    fn configuration(&self) -> PathBuf {
        self.names.dir().join("region.yaml")
    }

    /// What the node reads at its next start: the Gateway with this `spec.filter`.
    pub fn filter_at_start(&self, filter: &Value) {
        let text = std::fs::read_to_string(self.configuration()).unwrap();
        let text: String = text.lines().filter(|l| !l.starts_with("  filter: ")).map(|l| format!("{l}\n")).collect();
        let at =
            text.find("kind: Gateway").and_then(|at| Some(at + text[at..].find("spec:\n")? + 6)).expect("a Gateway");
        std::fs::write(self.configuration(), format!("{}  filter: {filter}\n{}", &text[..at], &text[at..])).unwrap();
    }

    /// What the node says of its state table.
    pub fn states(&self) -> StatesView {
        self.client().get("/v1/states").unwrap()
    }

    /// Connections of blue that are established.
    pub fn listed(&self) -> usize {
        self.get(&["--vpc", "blue", "--state", "established"]).len()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The gateway's process in the lab: starting it, asking it for its counters.

use crate::plan::Names;
use crate::state::Process;
use crate::LabError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a node may take until it forwards.
const START_PATIENCE: Duration = Duration::from_secs(20);

/// The running node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its process.
    pub process: Process,
    socket: PathBuf,
}

/// The counters that the lab judges by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent on by both engines.
    pub forwarded: u64,
    /// Packets sent on by the fast path.
    pub fast_forwarded: u64,
    /// Packets that the fast path handed over.
    pub punted: u64,
    /// Drops by reason.
    pub drops: BTreeMap<String, u64>,
    /// Whether every packet is accounted for.
    pub balanced: bool,
}

impl Counters {
    /// What came since `before`.
    pub fn since(&self, before: &Counters) -> Counters {
        let drops = self.drops.iter().map(|(k, v)| (k.clone(), v - before.drops.get(k).copied().unwrap_or(0)));
        Counters {
            forwarded: self.forwarded - before.forwarded,
            fast_forwarded: self.fast_forwarded - before.fast_forwarded,
            punted: self.punted - before.punted,
            drops: drops.filter(|(_, v)| *v > 0).collect(),
            balanced: self.balanced,
        }
    }

    /// Those of several nodes together.
    pub fn of(nodes: &[Node]) -> Result<Counters, LabError> {
        let mut sum = Counters { balanced: true, ..Counters::default() };
        for node in nodes {
            let c = node.counters()?;
            sum.forwarded += c.forwarded;
            sum.fast_forwarded += c.fast_forwarded;
            sum.punted += c.punted;
            sum.balanced &= c.balanced;
            for (reason, n) in c.drops {
                *sum.drops.entry(reason).or_default() += n;
            }
        }
        Ok(sum)
    }

    /// Share of the forwarded packets that took the fast path, 0 to 1.
    pub fn fast_share(&self) -> f64 {
        if self.forwarded == 0 {
            0.0
        } else {
            self.fast_forwarded as f64 / self.forwarded as f64
        }
    }
}

/// Where one of the lab's nodes runs, and what it is called.
#[derive(Clone, Debug)]
pub struct Place {
    /// Instance name.
    pub instance: String,
    /// API socket.
    pub socket: PathBuf,
    /// Its namespace, behind the prefix.
    namespace: &'static str,
    /// Names of its configuration, state and log in the lab's folder.
    files: [&'static str; 3],
    what: &'static str,
    /// Size of its flow caches, as `tunny node` takes it.
    flow_cache: String,
}

impl Place {
    /// The gateway.
    pub fn gateway(names: &Names) -> Place {
        let (files, flow_cache) = (["region.yaml", "node", "node.log"], "auto".to_string());
        Place {
            instance: names.instance(),
            socket: socket(names),
            namespace: "gw",
            files,
            what: "tunny node",
            flow_cache,
        }
    }

    /// The same with flow caches of such a size.
    pub fn with_flow_cache(self, size: &str) -> Place {
        Place { flow_cache: size.into(), ..self }
    }

    /// The filter node in front of the bare-metal servers.
    pub fn edge(names: &Names) -> Place {
        let instance = format!("{}-edge", names.instance());
        let socket = PathBuf::from("/run/tunny").join(format!("{instance}.sock"));
        let files = ["edge.yaml", "edge", "edge.log"];
        Place { instance, socket, namespace: "edge", files, what: "tunny node, filter", flow_cache: "auto".into() }
    }

    /// The node to which customers' lines lead.
    pub(crate) fn provider_edge(names: &Names) -> Place {
        let instance = format!("{}-pe", names.instance());
        let socket = PathBuf::from("/run/tunny").join(format!("{instance}.sock"));
        let files = ["pe.yaml", "pe", "pe.log"];
        Place {
            instance,
            socket,
            namespace: "pe",
            files,
            what: "tunny node, edge of customers",
            flow_cache: "auto".into(),
        }
    }

    /// The command that runs the node.
    fn argv(&self, tunny: &Path, dir: &Path) -> Vec<String> {
        [
            tunny.display().to_string(),
            "--instance".into(),
            self.instance.clone(),
            "--socket".into(),
            self.socket.display().to_string(),
            "node".into(),
            "--config".into(),
            dir.join(self.files[0]).display().to_string(),
            "--state".into(),
            dir.join(self.files[1]).display().to_string(),
            "--flow-cache".into(),
            self.flow_cache.clone(),
        ]
        .into()
    }
}

/// The node's API socket.
pub fn socket(names: &Names) -> PathBuf {
    PathBuf::from("/run/tunny").join(format!("{}.sock", names.instance()))
}

/// Starts a node in its namespace and waits until it forwards.
pub fn start(tunny: &Path, names: &Names, place: &Place) -> Result<Node, LabError> {
    let dir = names.dir();
    let log = dir.join(place.files[2]);
    let mut child = names.namespace(place.namespace).spawn(&place.argv(tunny, &dir), &log)?;
    let node = Node { process: Process::record(place.what, child.id()), socket: place.socket.clone() };
    let begun = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Err(LabError::Node(format!(
                "`tunny node` ended at once ({status}). Its last words:\n{}",
                tail(&log)
            )));
        }
        // A socket of an earlier node may still answer: the process id tells.
        if node.status().is_ok_and(|s| s["pid"].as_u64() == Some(node.process.pid as u64)) {
            // Waited for, so that it does not stay behind as a zombie while this process lives.
            std::thread::spawn(move || drop(child.wait()));
            return Ok(node);
        }
        if begun.elapsed() > START_PATIENCE {
            return Err(LabError::Node(format!(
                "`tunny node` does not answer on {} after {} s. Its last words:\n{}",
                node.socket.display(),
                START_PATIENCE.as_secs(),
                tail(&log)
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}

impl Node {
    /// A node that runs already.
    pub fn running(process: Process, names: &Names) -> Node {
        Node { process, socket: socket(names) }
    }

    /// A node with a socket of its own.
    pub fn at(process: Process, socket: PathBuf) -> Node {
        Node { process, socket }
    }

    /// `GET /v1/status`.
    pub fn status(&self) -> Result<Value, LabError> {
        self.get("/v1/status")
    }

    /// The counters, once they are at rest: punted packets have been taken in by the software path.
    pub fn counters(&self) -> Result<Counters, LabError> {
        let mut latest = Counters::default();
        for _ in 0..20 {
            let v = self.get("/v1/counters")?;
            let number = |path: &str| v.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            let drops = v.pointer("/total/drops").and_then(Value::as_object);
            latest = Counters {
                forwarded: number("/total/forwarded"),
                fast_forwarded: number("/fast/forwarded"),
                punted: number("/fast/punted"),
                drops: drops
                    .map(|d| d.iter().map(|(k, v)| (k.clone(), v.as_u64().unwrap_or(0))).collect())
                    .unwrap_or_default(),
                balanced: v.pointer("/balance/balanced").and_then(Value::as_bool).unwrap_or(false),
            };
            if latest.balanced {
                break;
            }
            std::thread::sleep(Duration::from_millis(25));
        }
        Ok(latest)
    }

    /// One request over the node's socket.
    pub fn get(&self, path: &str) -> Result<Value, LabError> {
        let body = self.body(path)?;
        serde_json::from_str(&body).map_err(|e| self.fail(path, &e.to_string()))
    }

    /// The entries of a listing, which comes as a line of JSON each and ends with a line that says so.
    pub fn list(&self, path: &str) -> Result<Vec<Value>, LabError> {
        let body = self.body(path)?;
        let lines: Result<Vec<Value>, _> = body.lines().map(serde_json::from_str).collect();
        let mut lines = lines.map_err(|e| self.fail(path, &e.to_string()))?;
        match lines.pop() {
            Some(end) if end.get("end").is_some() => Ok(lines),
            _ => Err(self.fail(path, "the listing is cut off")),
        }
    }

    /// The node's metrics as text.
    pub fn metrics(&self) -> Result<String, LabError> {
        self.body("/metrics")
    }

    fn fail(&self, path: &str, what: &str) -> LabError {
        LabError::Node(format!("asking the node for {path} on {}: {what}", self.socket.display()))
    }

    fn body(&self, path: &str) -> Result<String, LabError> {
        let fail = |what: String| self.fail(path, &what);
        let mut stream = UnixStream::connect(&self.socket).map_err(|e| fail(e.to_string()))?;
        stream.set_read_timeout(Some(Duration::from_secs(5))).map_err(|e| fail(e.to_string()))?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: tunny\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|e| fail(e.to_string()))?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|e| fail(e.to_string()))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| fail("the answer is cut off".into()))?;
        if !head.starts_with("HTTP/1.0 200") && !head.starts_with("HTTP/1.1 200") {
            return Err(fail(format!("{} {body}", head.lines().next().unwrap_or(""))));
        }
        Ok(body.to_string())
    }
}

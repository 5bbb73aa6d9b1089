// SPDX-License-Identifier: Apache-2.0
//! Commands and API against a running `tunny node --engine none`: no privileges, no ports.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml")
}

/// A node in a folder of its own; killed when the test ends.
struct Node {
    dir: TempDir,
    child: Child,
}

impl Node {
    fn start() -> Node {
        Node::in_dir(tempfile::tempdir().unwrap(), &[])
    }

    fn in_dir(dir: TempDir, more: &[&str]) -> Node {
        let (socket, state) = (dir.path().join("s"), dir.path().join("state"));
        let engine = if more.contains(&"--engine") { &[][..] } else { &["--engine", "none"][..] };
        let mut child = Command::new(TUNNY)
            .args(["node", "--instance", "test"])
            .args(engine)
            .arg("--socket")
            .arg(&socket)
            .arg("--state")
            .arg(&state)
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            let before = said.len();
            log.read_line(&mut said).unwrap();
            assert!(said.len() > before, "the node ended at once: {said}");
        }
        // A full pipe would stop the node.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Node { dir, child }
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, "")
    }

    fn run_with(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new(TUNNY);
        command.arg("--socket").arg(self.dir.path().join("s")).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["-o", "json"]].concat());
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn apply(&self, yaml: &str) -> Output {
        self.run_with(&["apply", "--yes", "-"], yaml)
    }

    /// Kills without warning, and starts again on the same state.
    fn kill_and_restart(mut self) -> Node {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let dir = std::mem::replace(&mut self.dir, tempfile::tempdir().unwrap());
        drop(self);
        Node::in_dir(dir, &[])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn vm(number: u32) -> String {
    let (b, c) = (number >> 8, number & 255);
    format!(
        "apiVersion: tunny/v1\nkind: Vm\nmetadata: {{name: n{number}}}\nspec: {{vpc: red, addresses: [10.0.{b}.{c}], \
         mac: \"02:00:00:01:{b:02x}:{c:02x}\", nc: host-a}}\n---\n"
    )
}

#[test]
fn what_is_applied_is_shown_held_and_survives_a_kill() {
    let node = Node::start();
    let out = node.run(&["apply", "--yes", example().to_str().unwrap()]);
    assert!(out.status.success() && text(&out).contains("committed as"), "{}", text(&out));
    assert_eq!(node.json(&["get", "vm"]).as_array().unwrap().len(), 6);
    let held = node.json(&["get", "vm", "--tables"]);
    assert_eq!(held.as_array().unwrap().len(), 6);
    assert!(node.apply(&vm(5000)).status.success());
    let before = (node.json(&["get", "all"]), node.json(&["get", "all", "--tables"]));
    let node = node.kill_and_restart();
    assert_eq!(node.json(&["get", "all"]), before.0);
    let without_ids = |mut v: Value| {
        for object in v.as_array_mut().unwrap() {
            object["spec"].as_object_mut().unwrap().remove("id");
        }
        v
    };
    assert_eq!(without_ids(node.json(&["get", "all", "--tables"])), without_ids(before.1));
    let same = node.run(&["apply", "--yes", example().to_str().unwrap()]);
    assert!(text(&same).contains("No changes"), "{}", text(&same));
}

#[test]
fn a_kill_during_applies_loses_nothing_that_was_acknowledged() {
    let node = Node::start();
    assert!(node.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    let (socket, acknowledged) = (node.dir.path().join("s"), std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0)));
    let count = acknowledged.clone();
    let applier = std::thread::spawn(move || {
        let client = node::client::Client::new(&socket).unwrap();
        for number in 5000.. {
            let mut body = Vec::new();
            node::body::write_document(&mut body, "vm.yaml", vm(number).as_bytes());
            match client.post::<node::types::ApplyReport>("/v1/apply", body) {
                Ok(report) => assert!(report.committed),
                Err(_) => return,
            }
            count.store(number - 4999, std::sync::atomic::Ordering::SeqCst);
        }
    });
    while acknowledged.load(std::sync::atomic::Ordering::SeqCst) < 20 {
        std::thread::yield_now();
    }
    let node = node.kill_and_restart();
    // The applier may still be talking to the first node's socket only; it ends with the first refusal.
    drop(applier);
    let n = acknowledged.load(std::sync::atomic::Ordering::SeqCst);
    for number in 5000..5000 + n {
        assert!(node.run(&["get", "vm", &format!("n{number}")]).status.success(), "VM n{number} of {n} is lost");
    }
}

#[test]
fn a_refused_change_changes_nothing_and_names_its_places() {
    let node = Node::start();
    assert!(node.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    let before = node.json(&["get", "all"]);
    let bad = format!("{}{}", vm(5000), vm(5001).replace("vpc: red", "vpc: purple").replace("10.0.", "10.0.999."));
    let out = node.apply(&bad);
    assert!(!out.status.success());
    assert!(text(&out).contains("-:9:33:"), "an error has file, line and column: {}", text(&out));
    assert_eq!(node.json(&["get", "all"]), before);
    // The limit of a table.
    let limit = "apiVersion: tunny/v1\nkind: Gateway\nmetadata: {name: gw1}\nspec: {vtep: {ipv4: 192.0.2.1, ipv6: \"2001:db8::1\"}, uplinks: [eth0], limits: {vms: 7}}\n";
    assert!(node.apply(limit).status.success());
    assert!(node.apply(&vm(5000)).status.success());
    let full = node.apply(&vm(5001));
    assert!(!full.status.success() && text(&full).contains("limit"), "{}", text(&full));
    assert_eq!(node.json(&["get", "vm"]).as_array().unwrap().len(), 7);
    assert_eq!(node.json(&["get", "vm", "--tables"]).as_array().unwrap().len(), 7);
}

#[test]
fn a_dry_run_shows_the_plan_and_without_yes_nothing_happens() {
    let node = Node::start();
    let plan = node.run(&["apply", "--dry-run", example().to_str().unwrap()]);
    assert!(text(&plan).contains("+ Vpc red"), "{}", text(&plan));
    let unasked = node.run(&["apply", example().to_str().unwrap()]);
    assert!(!unasked.status.success() && text(&unasked).contains("--yes"), "{}", text(&unasked));
    assert_eq!(node.json(&["get", "all"]).as_array().unwrap().len(), 0);
    let report = node.json(&["apply", "--yes", example().to_str().unwrap()]);
    assert_eq!(report["committed"], true);
    assert_eq!(report["plan"]["counts"]["Vm"]["added"], 6);
}

#[test]
fn objects_are_deleted_by_name_and_by_file() {
    let node = Node::start();
    assert!(node.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    let in_use = node.run(&["delete", "--yes", "nc", "host-a"]);
    assert!(!in_use.status.success(), "an NC with VMs cannot go: {}", text(&in_use));
    assert!(node.run(&["delete", "--yes", "--deletes", "2", "vm", "red-1", "red-2"]).status.success());
    assert_eq!(node.json(&["get", "vm", "--tables"]).as_array().unwrap().len(), 4);
    assert!(!node.run(&["get", "vm", "red-1"]).status.success());
    let all = node.run(&["apply", "--yes", example().to_str().unwrap()]);
    assert!(all.status.success());
    let objects = node.json(&["get", "all"]).as_array().unwrap().len().to_string();
    let out = node.run(&["delete", "--yes", "--deletes", &objects, "-f", example().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(node.json(&["get", "all"]).as_array().unwrap().len(), 0);
    assert_eq!(node.json(&["get", "all", "--tables"]).as_array().unwrap().len(), 0);
}

#[test]
fn a_snapshot_replaces_everything() {
    let node = Node::start();
    assert!(node.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    assert!(node.apply(&vm(5000)).status.success());
    let file = node.dir.path().join("region.tny");
    let file = file.to_str().unwrap();
    assert!(node.run(&["validate", example().to_str().unwrap(), "--snapshot", file]).status.success());
    let out = node.run(&["apply", "--yes", "--replace", file]);
    assert!(out.status.success(), "{}", text(&out));
    assert_eq!(node.json(&["get", "vm"]).as_array().unwrap().len(), 6, "the VM that the snapshot lacks is gone");
    let node = node.kill_and_restart();
    assert_eq!(node.json(&["get", "vm", "--tables"]).as_array().unwrap().len(), 6);
}

#[test]
fn two_nodes_do_not_share_a_state() {
    let node = Node::start();
    let second = Command::new(TUNNY)
        .args(["node", "--engine", "none", "--socket"])
        .arg(node.dir.path().join("other"))
        .arg("--state")
        .arg(node.dir.path().join("state"))
        .output()
        .unwrap();
    assert!(!second.status.success() && text(&second).contains("another `tunny node`"), "{}", text(&second));
}

#[test]
fn metrics_are_served_and_follow_the_format() {
    let dir = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let node = Node::in_dir(dir, &["--metrics", &port.to_string(), "--config", example().to_str().unwrap()]);
    let mut answer = String::new();
    for _ in 0..100 {
        if let Ok(mut stream) = TcpStream::connect(port) {
            stream
                .write_all(b"GET /metrics?vms=all HTTP/1.0\r\nHost: x\r\nAccept: application/openmetrics-text\r\n\r\n")
                .unwrap();
            stream.read_to_string(&mut answer).unwrap();
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let body = answer.split("\r\n\r\n").nth(1).expect("a body");
    assert!(
        body.contains("tunny_balanced 1.0\n") && body.contains("tunny_vm_packets_total{vm=\"red-1\"} 0\n"),
        "{body}"
    );
    assert!(body.contains("tunny_table_used{table=\"vms\"} 6.0\n"), "{body}");
    for line in body.lines().filter(|l| !l.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("name and value");
        assert!(name.starts_with("tunny_") && value.parse::<f64>().is_ok(), "{line}");
        let labels = name.split_once('{').map_or("", |(_, l)| l);
        assert!(labels.is_empty() || labels.ends_with("\"}"), "{line}");
    }
    assert!(body.ends_with("# EOF\n"));
    drop(node);
}

#[test]
fn a_trace_names_every_stage_and_leaves_no_mark() {
    let node = Node::in_dir(tempfile::tempdir().unwrap(), &["--config", example().to_str().unwrap()]);
    let words = ["trace", "vni=100", "src=10.0.0.11", "dst=10.0.0.99", "tcp", "from=192.0.2.11"];
    let report = node.json(&words);
    assert_eq!((&report["verdict"], &report["reason"]), (&"drop".into(), &"vm_unknown".into()));
    let stages: Vec<_> = report["steps"].as_array().unwrap().iter().map(|s| s["stage"].as_str().unwrap()).collect();
    assert!(["parse", "tenant", "route", "locate"].iter().all(|s| stages.contains(s)), "{stages:?}");
    let hex = node.json(&["trace", "--hex", report["frame"].as_str().unwrap()]);
    assert_eq!(hex["reason"], "vm_unknown");
    let counters = node.json(&["get", "counters"]);
    assert_eq!((&counters["total"]["rx"], &counters["balance"]["balanced"]), (&0.into(), &true.into()));
    let bad = node.run(&["trace", "vni=100", "src=10.0.0.11"]);
    assert!(!bad.status.success() && text(&bad).contains("lacks"), "{}", text(&bad));
}

#[test]
fn every_view_is_json_and_text() {
    let node = Node::in_dir(tempfile::tempdir().unwrap(), &["--config", example().to_str().unwrap()]);
    for what in ["status", "counters", "drops", "levels", "neighbours", "vm-counters", "vpc", "peerings", "all"] {
        node.json(&["get", what]);
        assert!(node.run(&["get", what]).status.success());
        assert!(node.run(&["get", what, "-o", "yaml"]).status.success());
    }
    let top = node.json(&["top", "--once", "--interval", "0.1"]);
    assert_eq!((&top["engine"], &top["balanced"]), (&"none".into(), &true.into()));
    assert!(!node.run(&["get", "nonsense"]).status.success());
    let nobody = Command::new(TUNNY).args(["get", "status", "--socket", "/nonexistent/s"]).output().unwrap();
    assert!(!nobody.status.success() && text(&nobody).contains("is `tunny node` running"), "{}", text(&nobody));
}

#[test]
fn who_stops_the_gateway_or_names_an_absent_uplink_is_told() {
    let node = Node::in_dir(tempfile::tempdir().unwrap(), &["--engine", "user", "--no-pins"]);
    let region = std::fs::read_to_string(example()).unwrap().replace("eth0", "absent0");
    let mut out = node.run_with(&["apply", "--dry-run", "-"], &region);
    let said = text(&out);
    assert!(
        said.contains("spec.uplinks[0] names `absent0`, which is not there") && said.contains("warning: -:"),
        "{said}"
    );
    out = node.apply(&region);
    assert!(out.status.success() && text(&out).contains("absent0"), "{}", text(&out));
    let file = node.dir.path().join("other.yaml");
    std::fs::write(&file, region.replace("absent0", "absent1")).unwrap();
    let report = node.json(&["apply", "--dry-run", "--replace", file.to_str().unwrap()]);
    assert!(report["plan"]["warnings"][0]["problem"].as_str().unwrap().contains("absent1"), "{report}");
    out = node.run(&["delete", "--dry-run", "gateway", "gw1"]);
    let said = text(&out);
    assert!(said.contains("takes its program off absent0 and forwards nothing for 3 VPCs and 6 VMs"), "{said}");
    // A Gateway that can forward nothing more is deleted without a word.
    let objects = node.json(&["get", "all"]).as_array().unwrap().len().to_string();
    assert!(node.run(&["delete", "--yes", "--deletes", &objects, "-f", example().to_str().unwrap()]).status.success());
}

#[test]
fn an_engine_that_cannot_be_had_is_refused_and_auto_goes_on_aloud() {
    let dir = tempfile::tempdir().unwrap();
    let pins = dir.path().join("no-bpffs").display().to_string();
    let node = Node::in_dir(dir, &["--engine", "auto", "--pins", &pins]);
    let gateway = |engine: &str| {
        format!("{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: g}}, spec: {{vtep: {{ipv4: 192.0.2.1}}, engine: {engine}, uplinks: [absent0]}}}}")
    };
    for engine in ["native", "generic"] {
        let out = node.apply(&gateway(engine));
        let said = text(&out);
        assert!(
            !out.status.success() && said.contains("has no fast path") && said.contains("spec.engine to auto"),
            "{said}"
        );
        assert_eq!(node.json(&["get", "gateway"]).as_array().unwrap().len(), 0);
    }
    assert!(node.apply(&gateway("auto")).status.success());
    let status = node.json(&["get", "status"]);
    let warnings = status["warnings"].to_string();
    assert!(status["engine"] == "user" && warnings.contains("ATTENTION: there is no fast path"), "{status}");
}

#[test]
fn levels_and_metrics_have_the_configured_limits() {
    let node = Node::start();
    let limits = "limits: {vms: 7, routes: 8, vpcs: 9, ncs: 10}";
    let gateway = "apiVersion: tunny/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {vtep: {ipv4: 192.0.2.1}, ";
    assert!(node.apply(&format!("{gateway}{limits}}}\n")).status.success());
    for node in [node.json(&["get", "levels"]), node.kill_and_restart().json(&["get", "levels"])] {
        let limit = |name: &str| node.as_array().unwrap().iter().find(|l| l["name"] == name).unwrap()["limit"].clone();
        assert_eq!([limit("vms"), limit("routes"), limit("tenants"), limit("ncs")], [7, 8, 9, 10]);
    }
}

#[test]
fn what_is_not_there_to_ask_for_is_answered_with_what_is() {
    let node = Node::in_dir(tempfile::tempdir().unwrap(), &["--config", example().to_str().unwrap()]);
    let out = node.run(&["get", "frob"]);
    assert!(
        text(&out).contains("there are gateway, nc") && text(&out).contains("vm-counters, levels"),
        "{}",
        text(&out)
    );
    for what in ["sessions", "ports"] {
        assert!(!text(&node.run(&["get", what])).contains("there is no"), "{what} is answered");
    }
    assert!(text(&node.run(&["get", "status", "x"])).contains("there is no `x` in it"));
    // Objects without a name of their own have one all the same.
    assert!(node
        .apply("{apiVersion: tunny/v1, kind: Route, spec: {vpc: red, prefix: 192.168.7.0/24, scope: blackhole}}")
        .status
        .success());
    assert!(text(&node.run(&["get", "route"])).contains("red/192.168.7.0/24"));
    assert!(node.run(&["get", "route", "red/192.168.7.0/24"]).status.success());
    let request = |words: &str| {
        let mut socket = std::os::unix::net::UnixStream::connect(node.dir.path().join("s")).unwrap();
        write!(socket, "{words} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap_or_else(|e| panic!("{words}: {e}: {answer}"));
        (head[9..12].to_string(), body["errors"][0].as_str().unwrap().to_string())
    };
    for (words, status, wanted) in [
        ("GET /v1/frob", "404", "there is nothing at /v1/frob; there are GET /v1/status"),
        ("GET /", "404", "there are GET /v1/status"),
        ("POST /v1/status", "405", "POST means nothing at /v1/status"),
        ("GET /v1/top?ms=x", "400", "ms: invalid digit"),
        ("POST /v1/trace", "415", "Content-Type"),
    ] {
        let (got, error) = request(words);
        assert!(got == status && error.contains(wanted), "{words}: {got} {error}");
    }
    // As `curl --data-binary @FILE` sends it, and a document with a mistake in the same way.
    let client = ::node::client::Client::new(&node.dir.path().join("s")).unwrap();
    let yaml = "apiVersion: tunny/v1\nkind: Vpc\nmetadata: {name: curled}\nspec: {vni: 4242}\n";
    let plan: Value = client.post("/v1/apply?dry_run=true", yaml.into()).unwrap();
    assert!(plan["text"].as_str().unwrap().contains("+ Vpc curled"), "{plan}");
    let refused = client.post::<Value>("/v1/apply", yaml.replace("4242", "0").into()).unwrap_err().to_string();
    assert!(refused.starts_with("request:4:13: Vpc curled: spec.vni - 0 is out of range"), "{refused}");
    let document: Value = client.get("/v1/openapi.json").unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert!(document["paths"]["/v1/apply"]["post"]["requestBody"]["content"]["application/yaml"].is_object());
}

#[test]
fn every_error_of_a_change_at_once_also_against_what_is() {
    let node = Node::in_dir(tempfile::tempdir().unwrap(), &["--config", example().to_str().unwrap()]);
    let out = node.apply(&format!("{}{}", vm(1).replace("mac:", "mak:"), vm(2).replace("nc: host-a", "nc: nobody")));
    let said = text(&out);
    assert!(
        !out.status.success() && said.contains("spec.mak is unknown") && said.contains("names Nc `nobody`"),
        "{said}"
    );
}

#[test]
fn a_node_outlives_the_reader_of_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut child = Command::new(TUNNY)
        .args(["node", "--engine", "none", "--no-state", "--socket"])
        .arg(&socket)
        .stderr(full)
        .spawn()
        .unwrap();
    let client = node::client::Client::new(&socket).unwrap();
    let begun = std::time::Instant::now();
    let answered = loop {
        match client.get::<node::types::Status>("/v1/status") {
            Ok(_) => break true,
            Err(_) if begun.elapsed().as_secs() > 20 || child.try_wait().unwrap().is_some() => break false,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    assert!(answered, "the node ended for want of a log");
}

const TRACE: [&str; 9] = [
    "trace",
    "vni=100",
    "src=10.0.0.11",
    "dst=10.1.0.11",
    "tcp",
    "sport=1000",
    "dport=443",
    "from=192.0.2.11",
    "ttl=9",
];

#[test]
fn the_text_of_a_trace_is_as_written() {
    let out = Command::new(TUNNY).args(TRACE).arg("--config").arg(example()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trace.txt");
    // Where in table memory something lies, which number it has, and by which short cut a route was proven, is nobody's business here.
    let mut said = String::from_utf8_lossy(&out.stdout).replace(" (proven by the VM-NC entry)", "");
    for before in ["at line ", "next hop ", "VM "] {
        let without_number = |part: &str| {
            let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
            format!("{before}{}{rest}", if rest.len() < part.len() { "N" } else { "" })
        };
        let mut parts = said.split(before);
        said = parts.next().unwrap().to_string() + &parts.map(without_number).collect::<String>();
    }
    if std::env::var_os("TUNNY_BLESS").is_some() {
        std::fs::write(&golden, &said).unwrap();
    }
    assert_eq!(said, std::fs::read_to_string(&golden).unwrap(), "TUNNY_BLESS=1 accepts the new text");
}

#[test]
fn both_engines_agree_in_a_trace() {
    if !skip::have_root("for the XDP program") {
        return;
    }
    let more = ["--engine", "xdp", "-o", "json"];
    for dst in ["10.1.0.11", "10.0.0.12", "10.0.0.1", "10.0.0.200", "172.16.0.1"] {
        let mut words = TRACE.map(String::from);
        words[3] = format!("dst={dst}");
        let out = Command::new(TUNNY).args(words).arg("--config").arg(example()).args(more).output().unwrap();
        assert!(out.status.success(), "{dst}: {}", text(&out));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(report["xdp"]["agrees"], true, "{dst}: {report}");
    }
}

#[test]
fn a_replay_accounts_for_every_packet() {
    use node::describe::Description;
    use node::pcap::{PcapNgWriter, Reader};
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.pcapng"), dir.path().join("out.pcap"));
    let mut writer = PcapNgWriter::new(std::fs::File::create(&input).unwrap(), "test").unwrap();
    let packets = [
        ("vni=100 src=10.0.0.11 dst=10.0.0.12 udp from=192.0.2.11", "forwarded"),
        ("vni=100 src=10.0.0.11 dst=10.0.0.1 arp from=192.0.2.11", "answered"),
        ("vni=100 src=10.0.0.11 dst=10.0.0.99 udp from=192.0.2.11", "vm_unknown"),
        ("vni=999 src=10.0.0.11 dst=10.0.0.99 udp from=192.0.2.11", "vni_unknown"),
        ("vni=100 src=10.0.0.11 dst=10.0.0.12 udp from=192.0.2.66", "source_unknown"),
        ("vni=100 src=10.0.0.11 dst=10.0.0.12 udp from=192.0.2.11 port=53", "passed"),
    ];
    for (number, (words, _)) in packets.iter().enumerate() {
        let frame = words.parse::<Description>().unwrap().frame(0xc000_0201, 0, 4789).unwrap();
        writer.write(abi::IfIndex(1), "up0", 1_000_000 * number as u64, frame.len() as u32, &frame, "").unwrap();
    }
    writer.flush().unwrap();
    let out = Command::new(TUNNY)
        .arg("replay")
        .args([&input, &output])
        .arg("--config")
        .arg(example())
        .args(["-o", "json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let summary: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((&summary["packets"], &summary["balanced"]), (&6.into(), &true.into()));
    for (_, what) in packets {
        let times =
            if summary["outcomes"][what].is_null() { &summary["drops"][what] } else { &summary["outcomes"][what] };
        // The ICMP error was forwarded as well.
        assert_eq!(times, if what == "forwarded" { 2 } else { 1 }, "{what}: {summary}");
    }
    // The forwarded packet, the answer, and the ICMP error for the unknown VM.
    let mut reader = Reader::new(std::fs::File::open(&output).unwrap()).unwrap();
    let mut written = 0;
    while reader.next_packet().unwrap().is_some() {
        written += 1;
    }
    assert_eq!((written, &summary["written"]), (3, &3.into()));
    let missing =
        Command::new(TUNNY).args(["replay", "/nonexistent", "x", "--config"]).arg(example()).output().unwrap();
    assert!(!missing.status.success() && text(&missing).contains("cannot read /nonexistent"), "{}", text(&missing));
}

#[test]
fn validate_reports_every_error_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.yaml");
    std::fs::write(&file, vm(1).replace("mac:", "mak:") + &vm(2).replace("nc: host-a", "nc: 7")).unwrap();
    let out = Command::new(TUNNY).arg("validate").arg(&file).output().unwrap();
    assert!(!out.status.success() && text(&out).matches("bad.yaml:").count() >= 2, "{}", text(&out));
    let json = Command::new(TUNNY).arg("validate").arg(&file).args(["-o", "json"]).output().unwrap();
    let value: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert!(value["valid"] == false && value["errors"].as_array().unwrap().len() >= 2, "{value}");
    assert!(Command::new(TUNNY).arg("validate").arg(example()).output().unwrap().status.success());
}

// SPDX-License-Identifier: Apache-2.0
//! Two real processes: what belongs to one node alone is taken by no other, and live tables are never emptied by another's state.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml")
}

/// Folders and pins of one test.
struct Scene {
    dir: tempfile::TempDir,
    pins: PathBuf,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let pins = PathBuf::from(format!("/sys/fs/bpf/tunny-instance-{name}-{}", std::process::id()));
        Scene { dir: tempfile::tempdir().unwrap(), pins }
    }

    fn command(&self, engine: &str, socket: &str, state: &str, more: &[&str]) -> Command {
        let mut command = Command::new(TUNNY);
        command.args(["node", "--instance", "two", "--engine", engine, "--socket"]).arg(self.dir.path().join(socket));
        command.arg("--pins").arg(&self.pins);
        if !state.is_empty() {
            command.arg("--state").arg(self.dir.path().join(state));
        }
        command.args(more);
        command
    }

    fn start(&self, engine: &str, socket: &str, state: &str, more: &[&str]) -> Node {
        let mut child = self.command(engine, socket, state, more).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            assert!(log.read_line(&mut said).unwrap() > 0, "the node ended at once: {said}");
        }
        // A full pipe would stop the node.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Node { child, socket: self.dir.path().join(socket) }
    }

    /// What a node says that must not start.
    fn refused(&self, engine: &str, socket: &str, state: &str, more: &[&str]) -> String {
        let out = self.command(engine, socket, state, more).output().unwrap();
        assert!(!out.status.success(), "it must not start: {}", text(&out));
        text(&out)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.pins);
    }
}

struct Node {
    child: Child,
    socket: PathBuf,
}

impl Node {
    fn run(&self, args: &[&str]) -> Output {
        Command::new(TUNNY).arg("--socket").arg(&self.socket).args(args).output().unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["-o", "json"]].concat());
        assert!(out.status.success(), "{args:?}: {}", text(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn vms_in_tables(&self) -> usize {
        self.json(&["get", "vm", "--tables"]).as_array().unwrap().len()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_nodes_do_not_share_a_socket() {
    let scene = Scene::new("socket");
    let first = scene.start("none", "s", "a", &[]);
    assert!(first.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    for (state, more) in [("b", &[][..]), ("", &["--no-state"][..])] {
        let said = scene.refused("none", "s", state, more);
        assert!(
            said.contains("another `tunny node` runs on") && said.contains("s.lock") && said.contains("--instance"),
            "{said}"
        );
    }
    assert_eq!(first.vms_in_tables(), 6, "the first one serves its socket as before");
    // A killed one holds nothing.
    first.kill();
    assert_eq!(scene.start("none", "s", "a", &[]).vms_in_tables(), 6);
}

/// The example's uplink may exist here, and then one node alone can have it.
static PORT: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// A BPF file system; without one the test is skipped.
fn can_pin() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    if mounts.lines().any(|l| l.split(' ').nth(1) == Some("/sys/fs/bpf") && l.split(' ').nth(2) == Some("bpf")) {
        return true;
    }
    let mounted = Command::new("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]).status().is_ok_and(|s| s.success());
    if !mounted {
        skip::test("needs a BPF file system at /sys/fs/bpf", "mount -t bpf bpf /sys/fs/bpf");
    }
    mounted
}

#[test]
fn live_tables_are_never_emptied_by_another_state() {
    if !(skip::have_root("to load XDP and pin it") && can_pin()) {
        return;
    }
    let _port = PORT.lock().unwrap_or_else(|e| e.into_inner());
    let scene = Scene::new("tables");
    let first = scene.start("xdp", "s", "a", &[]);
    assert!(first.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    let before = first.json(&["get", "vm", "--tables"]);
    let id = first.json(&["get", "status"])["state"].as_str().unwrap().to_string();
    assert!(scene.pins.join(format!("state-{id}")).is_dir(), "the tables carry the id of their state");
    // While it lives: another socket and another state do not help.
    let said = scene.refused("xdp", "t", "b", &["--adopt"]);
    assert!(said.contains("another `tunny node` runs on") && said.contains(scene.pins.to_str().unwrap()), "{said}");
    // Nor is it uninstalled under another socket.
    let mut uninstall = scene.command("xdp", "t", "b", &["--uninstall"]);
    let out = uninstall.output().unwrap();
    assert!(!out.status.success() && text(&out).contains("another `tunny node` runs on"), "{}", text(&out));
    assert_eq!(first.json(&["get", "vm", "--tables"]), before);
    first.kill();
    // While it is dead the fast path goes on with its tables.
    for (state, more) in [("b", &[][..]), ("", &["--no-state"][..]), ("b", &["--config", example().to_str().unwrap()])]
    {
        let said = scene.refused("xdp", "s", state, more);
        assert!(said.contains(&format!("were filled from state {id}")) && said.contains("--adopt"), "{said}");
    }
    let first = scene.start("xdp", "s", "a", &[]);
    assert_eq!(first.json(&["get", "status"])["took_over"], true);
    assert_eq!(first.json(&["get", "vm", "--tables"]), before, "nothing was emptied meanwhile");
    first.kill();
    // Told to, another state takes them, and then they are its own.
    let second = scene.start("xdp", "s", "b", &["--adopt"]);
    assert_eq!((second.vms_in_tables(), &second.json(&["get", "status"])["took_over"]), (0, &true.into()));
    second.kill();
    assert!(scene.refused("xdp", "s", "a", &[]).contains("--adopt"));
    assert_eq!(scene.start("xdp", "s", "b", &[]).vms_in_tables(), 0);
}

/// The kernel goes on with an attached program whatever the next node is: one that could not change its tables must not start.
#[test]
fn a_node_without_fast_path_does_not_start_beside_an_attached_one() {
    if !(skip::have_root("to load XDP and pin it") && can_pin()) {
        return;
    }
    let _port = PORT.lock().unwrap_or_else(|e| e.into_inner());
    let scene = Scene::new("stays");
    let first = scene.start("xdp", "s", "a", &[]);
    for engine in ["user", "none"] {
        let said = scene.refused(engine, "t", "b", &[]);
        assert!(said.contains("another `tunny node` runs on"), "{engine} while it lives: {said}");
    }
    first.kill();
    // As the link of an uplink is pinned; without one, nothing forwards that could be wrong.
    let link = scene.pins.join("link-7-native");
    std::fs::create_dir(&link).unwrap();
    for engine in ["user", "none"] {
        let said = scene.refused(engine, "s", "a", &[]);
        assert!(said.contains("still attached") && said.contains("--uninstall"), "{engine}: {said}");
    }
    // `auto` that may not load programs, as under a unit that lost its capabilities.
    let mut fallback = Command::new("setpriv");
    fallback.args(["--bounding-set", "-bpf,-sys_admin,-perfmon,-net_admin"]);
    let auto = scene.command("auto", "s", "a", &[]);
    let out = fallback.arg(auto.get_program()).args(auto.get_args()).output().unwrap();
    assert!(!out.status.success() && text(&out).contains("still attached"), "auto: {}", text(&out));
    std::fs::remove_dir(&link).unwrap();
    scene.start("user", "s", "a", &[]).kill();
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// But for the port of the example's metrics, which nodes of other tests have meanwhile.
fn warnings(node: &Node) -> String {
    let status = node.json(&["get", "status"]);
    let others = |w: &&Value| !w.to_string().contains("metrics cannot be served on 127.0.0.1:9464");
    Value::from(status["warnings"].as_array().unwrap().iter().filter(others).cloned().collect::<Vec<_>>()).to_string()
}

/// A copy has the same id, so only the number of its last change tells it from the original.
#[test]
fn live_tables_are_never_emptied_by_an_older_copy_of_their_state() {
    if !(skip::have_root("to load XDP and pin it") && can_pin()) {
        return;
    }
    let _port = PORT.lock().unwrap_or_else(|e| e.into_inner());
    let scene = Scene::new("copy");
    let first = scene.start("xdp", "s", "a", &[]);
    let dir = scene.dir.path();
    copy(&dir.join("a"), &dir.join("empty"));
    assert!(first.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    copy(&dir.join("a"), &dir.join("equal"));
    let vpc = dir.join("vpc.yaml");
    std::fs::write(&vpc, "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: late}, spec: {vni: 99999}}").unwrap();
    assert!(first.run(&["apply", "--yes", vpc.to_str().unwrap()]).status.success());
    copy(&dir.join("a"), &dir.join("newer"));
    let before = first.json(&["get", "vm", "--tables"]);
    first.kill();
    for (state, number) in [("empty", 0), ("equal", 1)] {
        let said = scene.refused("xdp", "s", state, &["--no-config"]);
        for part in [
            "generation 2",
            &format!("ends at generation {number}"),
            "older copy",
            dir.join(state).to_str().unwrap(),
            "--adopt",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    // The original, and a copy that is as new, go on.
    for state in ["a", "newer", "a"] {
        let node = scene.start("xdp", "s", state, &["--no-config"]);
        assert_eq!(node.json(&["get", "vm", "--tables"]), before);
        node.kill();
    }
    // The journal has a change that the tables do not have yet: what a death between the two leaves.
    std::fs::remove_dir(scene.pins.join("generation-2")).unwrap();
    std::fs::create_dir(scene.pins.join("generation-1")).unwrap();
    scene.start("xdp", "s", "a", &["--no-config"]).kill();
    assert!(scene.pins.join("generation-2").is_dir());
    // Told to, the older copy is what counts, also at the next start.
    for adopt in [&["--adopt"][..], &[]] {
        let node = scene.start("xdp", "s", "equal", &[adopt, &["--no-config"]].concat());
        assert_eq!(node.vms_in_tables(), 6);
        node.kill();
    }
}

#[test]
fn what_is_wrong_with_the_files_of_a_state_is_refused_or_a_warning() {
    let scene = Scene::new("files");
    let first = scene.start("none", "s", "a", &[]);
    for _ in 0..2 {
        assert!(first.run(&["apply", "--yes", "--replace", example().to_str().unwrap()]).status.success());
    }
    first.kill();
    let (a, b) = (scene.dir.path().join("a"), scene.dir.path().join("b"));
    let remade = || {
        let _ = std::fs::remove_dir_all(&b);
        copy(&a, &b);
    };
    for more in [&["tail"][..], &["tail", "history"], &["tail", "history", "past"], &["tail", "past", "events"]] {
        remade();
        let files = std::fs::read_dir(&b).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        for name in files.filter(|n| n == "snapshot" || n.starts_with("journal-") || more.contains(&n.as_str())) {
            let _ = std::fs::remove_file(b.join(&name)).or_else(|_| std::fs::remove_dir_all(b.join(&name)));
        }
        let said = scene.refused("none", "s", "b", &["--no-config"]);
        assert!(
            said.contains("holds no configuration, but its history knows change 1") && said.contains("move it away"),
            "{more:?}: {said}"
        );
    }
    for name in ["tail", "id", "history", "events"] {
        for content in [&b"garbage"[..], b""] {
            // Nothing tells an empty list of events from one to which nothing was added.
            if content.is_empty() && ["history", "events"].contains(&name) {
                continue;
            }
            remade();
            std::fs::write(b.join(name), content).unwrap();
            let node = scene.start("none", "s", "b", &["--no-config"]);
            assert!(warnings(&node).contains(&format!("/{name} is damaged")), "{name}: {}", warnings(&node));
            assert_eq!(node.vms_in_tables(), 6);
            node.kill();
        }
    }
    remade();
    assert_eq!(warnings(&scene.start("none", "s", "b", &["--no-config"])), "[]");
}

/// The packaged unit runs what the same command typed by hand runs: it names neither state, instance, socket, pins nor configuration.
/// A state folder that is emptied under the running node: it is said, nothing acknowledged is lost, and nobody's history ends.
#[test]
fn a_state_emptied_under_a_running_node_is_written_anew() {
    let scene = Scene::new("emptied");
    let state = scene.dir.path().join("a");
    let node = scene.start("none", "s", "a", &[]);
    assert!(node.run(&["apply", "--yes", example().to_str().unwrap()]).status.success());
    let id = node.json(&["get", "status"])["state"].clone();
    for file in std::fs::read_dir(&state).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
        std::fs::remove_file(file).unwrap();
    }
    let vpc = scene.dir.path().join("vpc.yaml");
    std::fs::write(&vpc, "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: late}, spec: {vni: 4711}}\n").unwrap();
    assert!(node.run(&["apply", "--yes", vpc.to_str().unwrap()]).status.success());
    let said = warnings(&node);
    assert!(
        said.contains("was removed or replaced under the running node") && said.contains(state.to_str().unwrap()),
        "{said}"
    );
    let before = (node.json(&["get", "vpc"]), node.json(&["history"]));
    assert_eq!(before.1.as_array().map(Vec::len), Some(2), "{}", before.1);
    node.kill();
    let node = scene.start("none", "s", "a", &[]);
    assert_eq!((node.json(&["get", "vpc"]), node.json(&["history"])), before);
    assert_eq!(node.json(&["get", "status"])["state"], id);
    assert!(!warnings(&node).contains("removed"));
}

/// A change whose report cannot be written has happened, and the error says so.
#[test]
fn a_report_that_cannot_be_written_says_what_was_committed() {
    let scene = Scene::new("full");
    let node = scene.start("none", "s", "a", &[]);
    let run = |args: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = Command::new(TUNNY).arg("--socket").arg(&node.socket).args(args).stdout(full).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        text(&out)
    };
    let example = example();
    let example = example.to_str().unwrap();
    let said = run(&["apply", "--dry-run", example]);
    assert!(said.contains("nothing was changed") && said.contains("No space left"), "{said}");
    for (args, generation) in [
        (&["apply", "--yes", example][..], 1),
        (&["delete", "vm", "blue-1", "-y", "--deletes", "1", "-o", "json"], 2),
        (&["rollback", "1", "-y"], 3),
    ] {
        let said = run(args);
        let wanted = format!("the change was committed as generation {generation}, but its report cannot be written");
        assert!(said.contains(&wanted) && said.contains("No space left"), "{args:?}: {said}");
    }
}

/// With the fast path the lock beside the socket goes, unless a node has it.
#[test]
fn uninstalling_leaves_no_lock_file() {
    let scene = Scene::new("locks");
    let lock = scene.dir.path().join("s.lock");
    let node = scene.start("none", "s", "a", &[]);
    assert!(lock.exists());
    assert!(!scene.command("none", "s", "a", &["--uninstall"]).output().unwrap().status.success() && lock.exists());
    node.kill();
    assert!(lock.exists(), "a lock file that goes with its node would be no lock");
    let out = scene.command("none", "s", "a", &["--uninstall"]).output().unwrap();
    assert!(out.status.success() && !lock.exists(), "{}", text(&out));
    scene.start("none", "s", "a", &[]).kill();
}

#[test]
fn the_unit_and_the_commands_defaults_agree() {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let unit = std::fs::read_to_string(packaging.join("tunny.service")).unwrap();
    let lines: Vec<&str> = unit.lines().filter(|l| l.starts_with("ExecStart=")).collect();
    assert_eq!(lines, ["ExecStart=/usr/bin/tunny node"]);
    let out = Command::new(TUNNY).args(["node", "--help"]).output().unwrap();
    let help = text(&out).split_whitespace().collect::<Vec<_>>().join(" ");
    for (folder, default) in [
        ("StateDirectory=tunny", "[default: /var/lib/tunny/INSTANCE]"),
        ("RuntimeDirectory=tunny", "[default: /run/tunny/INSTANCE.sock]"),
        (
            "ConfigurationDirectory=tunny",
            "[default: the files in /etc/tunny, or for another instance than `default` in /etc/tunny/INSTANCE",
        ),
        ("ExecStartPre=+/usr/bin/mkdir -p /sys/fs/bpf/tunny", "[default: /sys/fs/bpf/tunny/INSTANCE]"),
    ] {
        assert!(unit.lines().any(|l| l == folder), "{folder}");
        assert!(help.contains(default), "{default}: {help}");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What people and programs are told: by a socket that they may not open, by metrics, by a machine without a BPF file system.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

struct Node {
    dir: tempfile::TempDir,
    child: Child,
}

impl Node {
    fn start() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let example: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/internet.yaml");
        let mut command = Command::new(TUNNY);
        command
            .args(["node", "--instance", "messages", "--engine", "none", "--no-state", "--socket"])
            .arg(dir.path().join("s"));
        let mut child = command.arg("--config").arg(example).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("listening on") {
            assert!(log.read_line(&mut said).unwrap() > 0, "the node ended at once: {said}");
        }
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Node { dir, child }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn who_may_not_open_the_socket_is_told_of_the_group_and_of_sudo() {
    if !skip::have_root("to become another user") {
        return;
    }
    let node = Node::start();
    std::fs::set_permissions(node.dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The binary may lie where another user may not go.
    let copy = node.dir.path().join("tunny");
    std::fs::copy(TUNNY, &copy).unwrap();
    let out = Command::new(&copy)
        .args(["get", "status", "--socket"])
        .arg(node.socket())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let said = text(&out);
    assert!(!out.status.success() && said.contains("no permission to open") && said.contains("sudo"), "{said}");
    assert!(
        !said.contains("usermod") && said.contains("Group=") && !said.contains("is `tunny node` running"),
        "the group of root is none to join: {said}"
    );
    std::os::unix::fs::chown(node.socket(), None, Some(1)).unwrap();
    let out = Command::new(&copy)
        .args(["get", "status", "--socket"])
        .arg(node.socket())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert!(text(&out).contains("usermod -aG daemon USER"), "{}", text(&out));
    // A node that may not write what it must is told, too.
    let closed = node.dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    let open = tempfile::tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    for (socket, state) in [(&closed, open.path()), (&open.path().to_path_buf(), &closed)] {
        let mut command = Command::new(&copy);
        command
            .args(["node", "--engine", "none", "--no-config", "--socket"])
            .arg(socket.join("s"))
            .arg("--state")
            .arg(state.join("state"));
        let out = command.uid(65534).gid(65534).output().unwrap();
        let said = text(&out);
        assert!(
            !out.status.success()
                && said.contains("Permission denied")
                && said.contains("sudo")
                && said.contains("--state"),
            "{said}"
        );
    }
}

#[test]
fn what_a_refusal_repeats_of_a_command_line_holds_no_command_for_a_terminal() {
    for words in [
        &["X\r"][..],
        &["get", "--\x1b[31mx"],
        &["--instance", "a\rb", "get", "vm"],
        &["rollback", "\r7"],
        &["completion", "z\u{9b}31m"],
    ] {
        for format in [&["-o", "table"][..], &["-o", "json"]] {
            let out = Command::new(TUNNY).args(format).args(words).output().unwrap();
            let said = text(&out);
            assert!(
                !out.status.success() && !said.contains(|c: char| c.is_control() && c != '\n'),
                "{words:?}: {said:?}"
            );
        }
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    if !skip::have_tool("promtool", "prometheus") {
        return;
    }
    let node = Node::start();
    let request = |accept: &str| {
        let mut socket = std::os::unix::net::UnixStream::connect(node.socket()).unwrap();
        write!(socket, "GET /metrics?vms=all HTTP/1.0\r\nhost: x\r\n{accept}\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_string(), body.to_string())
    };
    let (head, body) = request("");
    assert!(head.contains("text/plain; version=0.0.4") && !body.contains("# EOF"), "{head}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    let out = promtool.wait_with_output().unwrap();
    assert!(out.status.success() && text(&out).is_empty(), "{}", text(&out));
    // A scraper that asks for OpenMetrics gets it, with the same numbers.
    let (head, modern) = request("accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(head.contains("application/openmetrics-text") && modern.ends_with("# EOF\n"), "{head}");
    let names = |text: &str| {
        text.lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.rsplit_once(' ').unwrap().0.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&body), names(&modern));
}

#[test]
fn a_machine_without_a_bpf_file_system_is_told_how_to_mount_it() {
    if !skip::have_root("to load XDP") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for pins in ["plain/folder", "absent/deep/folder"] {
        let mut command = Command::new(TUNNY);
        command.args(["node", "--engine", "xdp", "--no-state", "--no-config", "--socket"]).arg(dir.path().join("s"));
        let out = command.arg("--pins").arg(dir.path().join(pins)).output().unwrap();
        assert!(!out.status.success() && text(&out).contains("mount -t bpf bpf /sys/fs/bpf"), "{}", text(&out));
    }
}

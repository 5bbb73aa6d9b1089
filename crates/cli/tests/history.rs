// SPDX-License-Identifier: Apache-2.0
//! Who changed what: events, history and rollback of a running node; and a state whose disk is full.

mod process;

use process::Daemon;
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

fn example() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml").display().to_string()
}

struct Node {
    dir: PathBuf,
    daemon: Daemon,
}

impl Node {
    fn start(dir: &Path, more: &[&str]) -> Node {
        let (socket, state) = (dir.join("s").display().to_string(), dir.join("state").display().to_string());
        let words = ["node", "--instance", "history", "--engine", "none", "--socket", &socket];
        let state: &[&str] = if more.contains(&"--no-state") { &[] } else { &["--state", &state] };
        Node { dir: dir.to_path_buf(), daemon: Daemon::start(dir, &[&words[..], state, more].concat()) }
    }

    fn run(&self, args: &[&str], input: &str) -> Output {
        let mut command = Command::new(TUNNY);
        command.arg("--socket").arg(self.dir.join("s")).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    }

    fn said(&self, args: &[&str]) -> String {
        let out = self.run(args, "");
        assert!(out.status.success(), "{args:?}: {}", text(&out));
        text(&out)
    }

    fn json(&self, args: &[&str]) -> Value {
        let out = self.run(&[args, &["-o", "json"]].concat(), "");
        assert!(out.status.success(), "{args:?}: {}", text(&out));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    fn kill(self) {
        self.daemon.kill();
    }

    fn log(&self) -> String {
        self.daemon.log.lock().unwrap().clone()
    }

    /// Waits until something is so.
    fn until(&self, what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{what}; {}\n{}",
                self.said(&["get", "status"]),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn vm(number: u32) -> String {
    format!(
        "apiVersion: tunny/v1\nkind: Vm\nmetadata: {{name: n{number}}}\nspec: {{vpc: red, addresses: [10.0.9.{number}], \
         mac: \"02:00:00:09:00:{number:02x}\", nc: host-a}}\n---\n"
    )
}

fn short(event: &Value) -> (String, String, u64) {
    (
        event["what"].as_str().unwrap().into(),
        event["outcome"].as_str().unwrap().into(),
        event["generation"].as_u64().unwrap(),
    )
}

#[test]
fn every_change_and_refusal_is_one_event_and_one_line_of_the_log_and_outlives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    node.said(&["apply", "--yes", &example()]);
    assert!(node.run(&["apply", "--yes", "-"], &vm(1)).status.success());
    // A plan changes nothing; the same once more changes nothing, but was asked for.
    node.said(&["apply", "--dry-run", &example()]);
    node.said(&["apply", "--yes", &example()]);
    let bad = vm(2).replace("vpc: red", "vpc: \"\\e[31mpurple\"");
    let refused = node.run(&["apply", "--yes", "-"], &bad);
    assert!(!refused.status.success());
    assert!(!node.run(&["apply", "--yes", "--replace", "-"], "# nothing\n").status.success());
    node.said(&["delete", "--yes", "vm", "n1"]);
    node.said(&["rollback", "--yes", "2"]);
    let expected = [
        ("apply", "committed", 1),
        ("apply", "committed", 2),
        ("apply", "unchanged", 2),
        ("apply", "refused", 2),
        ("replace", "refused", 2),
        ("delete", "committed", 3),
        ("rollback to 2", "committed", 4),
    ]
    .map(|(what, outcome, generation)| (what.to_string(), outcome.to_string(), generation));
    let events = node.json(&["get", "events"]);
    let list = events.as_array().unwrap();
    assert_eq!(list.iter().map(short).collect::<Vec<_>>(), expected, "{events}");
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
    for event in list {
        assert_eq!((event["uid"].as_u64(), event["program"].as_str()), (Some(uid.into()), Some("tunny")), "{event}");
        assert!(event["pid"].as_u64().is_some_and(|pid| pid > 1 && pid != u64::from(node.daemon.id())), "{event}");
        assert!(
            event["from"].as_str().unwrap().starts_with("socket ") && event["from"].as_str().unwrap().ends_with("/s"),
            "{event}"
        );
        assert!(
            event["time"].as_str().unwrap().starts_with("20") && event["time_ms"].as_u64().unwrap() > 1_700_000_000_000
        );
    }
    assert_eq!(list[1]["counts"], serde_json::json!({"Vm": {"added": 1, "changed": 0, "removed": 0}}));
    assert!(list[3]["note"].as_str().unwrap().contains("purple"), "{}", list[3]);
    // In words: nothing that a terminal would obey.
    let words = node.said(&["get", "events"]);
    assert!(words.contains("Vm +1 ~0 -0") && words.contains("\\u{1b}[31mpurple") && !words.contains('\x1b'), "{words}");
    // One line each.
    let log = node.log();
    assert!(!log.contains("\x1b[31mpurple"), "{log}");
    let lines: Vec<&str> = log.lines().filter(|l| l.contains(" from socket ")).collect();
    assert_eq!(lines.len(), expected.len(), "{log}");
    assert!(
        lines[0].contains("generation 1") && lines[5].contains("delete by ") && lines[5].contains("Vm +0 ~0 -1"),
        "{log}"
    );
    node.kill();
    let node = Node::start(dir.path(), &[]);
    assert_eq!(node.json(&["get", "events"]), events);
}

/// The head and the body of an answer.
fn fetch(node: &Node, path: &str) -> (String, Value) {
    let (head, body) = request(node, &format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n"));
    (head, serde_json::from_str(&body).unwrap())
}

fn post(node: &Node, path: &str, body: &str) -> (String, String) {
    let kind = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    request(node, &format!("POST {path} HTTP/1.0\r\nhost: x\r\n{kind}\r\n\r\n{body}"))
}

fn request(node: &Node, text: &str) -> (String, String) {
    let mut socket = std::os::unix::net::UnixStream::connect(node.dir.join("s")).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut socket, &mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_string())
}

#[test]
fn rules_and_sessions_that_a_limit_cuts_say_so_to_programs_too() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &["--config", &example()]);
    let group =
        "{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: web}, spec: {rules: [ingress allow tcp/80 any, \
                 ingress allow tcp/443 any, egress allow any any]}}\n";
    assert!(node.run(&["apply", "--yes", "-"], group).status.success());
    for (limit, listed, cut) in [(0, 3, false), (2, 2, true), (3, 3, false), (4, 3, false)] {
        let (head, body) = post(&node, "/v1/rules", &format!("{{\"limit\": {limit}}}"));
        let list: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(
            (list.as_array().unwrap().len(), head.contains("tunny-cut: true")),
            (listed, cut),
            "{limit}: {head}"
        );
        let out = node.run(&["get", "rules", "--limit", &limit.to_string(), "-o", "json"], "");
        assert_eq!(out.status.code(), Some(if cut { 3 } else { 0 }), "{limit}: {}", text(&out));
        assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap(), list);
    }
    let (_, body) = post(&node, "/v1/sessions", "{}");
    assert_eq!(body, "{\"end\":{\"continue\":\"\",\"count\":0,\"error\":\"\"}}\n");
}

#[test]
fn a_limit_of_0_is_none_and_a_list_that_is_cut_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &["--config", &example()]);
    for number in 1..6 {
        assert!(node.run(&["apply", "--yes", "-"], &vm(number)).status.success());
    }
    for words in [&["get", "events"][..], &["history"]] {
        let all = node.json(words);
        let list = all.as_array().unwrap();
        assert_eq!((list.len(), node.json(&[words, &["--limit", "0"]].concat())), (6, all.clone()), "{words:?}");
        assert_eq!(node.json(&[words, &["--limit", "6"]].concat()), all, "a limit that is just enough cuts nothing");
        for format in ["json", "table"] {
            let out = node.run(&[words, &["--limit", "2", "-o", format]].concat(), "");
            let said = String::from_utf8_lossy(&out.stderr);
            assert_eq!(out.status.code(), Some(3), "{said}");
            assert!(
                said.contains("these are the latest 2, and there are 4 older ones; give --limit 0 for all"),
                "{said}"
            );
            if format == "json" {
                let latest: Value = serde_json::from_slice(&out.stdout).unwrap();
                assert_eq!(latest.as_array().unwrap()[..], list[4..]);
            }
        }
        let path = format!("/v1/{}", words.last().unwrap());
        for (query, from, cut) in
            [("", 0, false), ("?limit=0", 0, false), ("?limit=6", 0, false), ("?limit=2", 4, true)]
        {
            let (head, found) = fetch(&node, &(path.clone() + query));
            assert_eq!(
                (&found.as_array().unwrap()[..], head.contains("tunny-cut: true")),
                (&list[from..], cut),
                "{path}{query}"
            );
        }
    }
    // All the other lists that have a limit.
    for kind in ["all", "vm", "vm-counters", "sessions", "ports", "rules", "migration", "events"] {
        let out = node.run(&["get", kind, "--limit", "0"], "");
        assert!(out.status.success() && text(&out) == text(&node.run(&["get", kind], "")), "{kind}: {}", text(&out));
    }
    let out = node.run(&["get", "events", "--continue", "x"], "");
    assert!(
        text(&out).contains(
            "a list of `events` has no place to go on from: give a larger --limit, or --limit 0 for all of it"
        ),
        "{}",
        text(&out)
    );
    // One word, one meaning.
    let status = node.json(&["get", "status"]);
    assert_eq!((&status["generation"], status["table_commits"].is_u64()), (&6.into(), true), "{status}");
}

#[test]
fn files_that_are_applied_at_the_start_are_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &["--config", &example()]);
    let events = node.json(&["get", "events"]);
    assert_eq!(
        events.as_array().unwrap().iter().map(short).collect::<Vec<_>>(),
        [("start".into(), "committed".into(), 1)]
    );
    assert!(
        events[0]["from"].as_str().unwrap().starts_with("startup, files ") && events[0]["counts"]["Vm"]["added"] == 6,
        "{events}"
    );
    node.kill();
    // Again the same says nothing; a bad file is refused, and that is kept.
    Node::start(dir.path(), &["--config", &example()]).kill();
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "kind: Frob\n").unwrap();
    let mut command = Command::new(TUNNY);
    command
        .args(["node", "--engine", "none", "--socket"])
        .arg(dir.path().join("s"))
        .arg("--state")
        .arg(dir.path().join("state"));
    assert!(!command.arg("--config").arg(&bad).output().unwrap().status.success());
    let node = Node::start(dir.path(), &[]);
    let events = node.json(&["get", "events"]);
    let list: Vec<_> = events.as_array().unwrap().iter().map(short).collect();
    assert_eq!(list, [("start".into(), "committed".into(), 1), ("start".into(), "refused".into(), 1)], "{events}");
}

#[test]
fn history_names_generations_and_a_rollback_is_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &[]);
    node.said(&["apply", "--yes", &example()]);
    let mut states = vec![Value::Null, node.json(&["get", "all"])];
    for number in 1..5 {
        assert!(node.run(&["apply", "--yes", "-"], &vm(number)).status.success());
        states.push(node.json(&["get", "all"]));
    }
    node.said(&["apply", "--yes", "--replace", &example(), "--deletes", "4"]);
    states.push(node.json(&["get", "all"]));
    // The plan is shown, and without consent nothing happens.
    let plan = node.said(&["rollback", "3", "--dry-run"]);
    assert!(plan.contains("+ Vm n1") && plan.contains("+ Vm n2") && !plan.contains("n3"), "{plan}");
    let unasked = node.run(&["rollback", "3"], "");
    assert!(!unasked.status.success() && text(&unasked).contains("--yes"), "{}", text(&unasked));
    assert_eq!(node.json(&["get", "all"]), states[6]);
    let mut generation = 6;
    for to in [3, 5, 1, 4, 2, 6] {
        let deletes = node.json(&["rollback", &to.to_string(), "--dry-run"])["deletes"].to_string();
        let said = node.said(&["rollback", "--yes", "--deletes", &deletes, &to.to_string()]);
        generation += 1;
        assert!(said.contains(&format!("committed as generation {generation}")), "{said}");
        assert_eq!(node.json(&["get", "all"]), states[to], "back to {to}");
        states.push(states[to].clone());
    }
    let history = node.json(&["history"]);
    let list = history.as_array().unwrap();
    assert_eq!(
        list.iter().map(|g| g["generation"].as_u64().unwrap()).collect::<Vec<_>>(),
        (1..=12).collect::<Vec<_>>()
    );
    assert!(list.iter().all(|g| g["kept"] == true && g["uid"].is_u64()) && list[11]["present"] == true, "{history}");
    assert_eq!((&list[6]["what"], &list[6]["counts"]["Vm"]["added"]), (&"rollback to 3".into(), &2.into()));
    let latest = node.run(&["history", "--limit", "2"], "");
    let words = text(&latest);
    assert!(words.contains("rollback to 6") && words.contains("present") && words.contains("10 older ones"), "{words}");
    let missing = node.run(&["rollback", "--yes", "99"], "");
    assert!(
        text(&missing).contains("generation 99 is not kept, those of 1 to 12 are: see `tunny history`"),
        "{}",
        text(&missing)
    );
    // Over a kill, a rollback goes back behind it.
    node.kill();
    let node = Node::start(dir.path(), &[]);
    node.said(&["rollback", "--yes", "4"]);
    assert_eq!(node.json(&["get", "all"]), states[4]);
    assert_eq!(node.json(&["get", "vm", "--tables"]).as_array().unwrap().len(), 9);
    // Killed between journal and history: the generation is there, and who made it is not known.
    node.kill();
    let path = dir.path().join("state/history");
    let lines = std::fs::read_to_string(&path).unwrap();
    let cut = lines.trim_end().rfind('\n').unwrap() + 1;
    std::fs::write(&path, &lines[..cut]).unwrap();
    let node = Node::start(dir.path(), &[]);
    let history = node.json(&["history"]);
    let last = history.as_array().unwrap().last().unwrap();
    assert!(last["generation"] == 13 && last["note"].as_str().unwrap().contains("was not noted"), "{last}");
}

#[test]
fn a_node_without_a_state_has_events_but_no_way_back() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path(), &["--no-state"]);
    node.said(&["apply", "--yes", &example()]);
    assert!(node.run(&["apply", "--yes", "-"], &vm(1)).status.success());
    assert_eq!(node.json(&["get", "events"]).as_array().unwrap().len(), 2);
    assert!(node.json(&["history"]).as_array().unwrap().iter().all(|g| g["kept"] == false));
    let out = node.run(&["rollback", "--yes", "1"], "");
    assert!(!out.status.success() && text(&out).contains("keeps no state"), "{}", text(&out));
}

/// A file system of 1 MiB on the state's folder.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(dir: &Path) -> Option<SmallDisk> {
        std::fs::create_dir_all(dir).unwrap();
        let mounted =
            nix::mount::mount(Some("tmpfs"), dir, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=1m"));
        if let Err(e) = mounted {
            skip::test(format_args!("needs to mount a tmpfs: {e}"), "run it where mounting is allowed");
            return None;
        }
        Some(SmallDisk(dir.to_path_buf()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_full_disk_is_a_warning_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let disk = skip::have_root("for a file system of its own").then(|| SmallDisk::new(&state)).flatten();
    let Some(_disk) = disk else { return };
    let node = Node::start(dir.path(), &[]);
    node.said(&["apply", "--yes", &example()]);
    let before = node.json(&["get", "all"]);
    let mut filler = std::fs::File::create(state.join("filler")).unwrap();
    while filler.write_all(&[0; 512]).is_ok() {}
    drop(filler);
    let many: String = (10..200).map(vm).collect();
    let warned =
        || node.json(&["get", "status"])["warnings"].to_string().contains("cannot be written, so changes are refused");
    assert!(!warned());
    for _ in 0..2 {
        let out = node.run(&["apply", "--yes", "-"], &many);
        assert!(!out.status.success() && text(&out).contains("No space left on device"), "{}", text(&out));
        assert!(warned() && node.said(&["get", "status"]).contains("WARNING    the state on disk cannot be written"));
    }
    // It stays so as long as there is no room, and is said once.
    std::thread::sleep(Duration::from_millis(2500));
    assert!(warned());
    assert_eq!(node.log().matches("the state on disk cannot be written").count(), 1, "{}", node.log());
    assert_eq!(node.json(&["get", "all"]), before);
    std::fs::remove_file(state.join("filler")).unwrap();
    node.until("the warning goes when there is room", || !warned());
    assert!(node.log().contains("the state on disk can be written again"), "{}", node.log());
    assert!(node.run(&["apply", "--yes", "-"], &many).status.success());
    let (after, events) = (node.json(&["get", "all"]), node.json(&["get", "events"]));
    let refused = events.as_array().unwrap().iter().filter(|e| e["outcome"] == "refused").count();
    assert_eq!(refused, 2, "{events}");
    node.kill();
    let node = Node::start(dir.path(), &[]);
    assert_eq!(node.json(&["get", "all"]), after);
    assert_eq!(node.json(&["get", "events"]), events, "what could not be written is written later");
}

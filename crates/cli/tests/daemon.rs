// SPDX-License-Identifier: Apache-2.0
//! What a daemon does when it is told to reload or to stop, and what strangers may do to its metrics.

mod terminal;

use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use terminal::Node;

const VPC: &str = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: NAME}, spec: {vni: 77}}\n";

#[test]
fn sighup_reloads_the_files_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    std::fs::copy(terminal::example(), dir.path().join("etc/region.yaml")).unwrap();
    let node = Node::in_dir(dir, &["--config", "etc"]);
    node.write("etc/more.yaml", &VPC.replace("NAME", "fresh"));
    node.signal(Signal::SIGHUP);
    node.wait_for("reloaded etc: 1 to add, 0 to change, 0 to remove");
    node.said(&["get", "vpc", "fresh"]);
    // One that is refused changes nothing, and is a warning until the next one.
    node.write(
        "etc/more.yaml",
        &(VPC.replace("NAME", "other").replace("77", "78") + "---\n{apiVersion: tunny/v1, kind: Frob}\n"),
    );
    node.signal(Signal::SIGHUP);
    node.wait_for("reload: etc: nothing was changed");
    assert!(!node.command(&["get", "vpc", "other"]).output().unwrap().status.success());
    assert!(node
        .said(&["get", "status"])
        .contains("WARNING    the last reload of etc was refused, and nothing was changed: etc/more.yaml:"));
    std::fs::remove_file(node.dir.path().join("etc/more.yaml")).unwrap();
    node.signal(Signal::SIGHUP);
    node.wait_for("reloaded etc: No changes");
    assert!(!node.said(&["get", "status"]).contains("reload"));
    // An empty folder is a slip of the hand, not a configuration without objects.
    std::fs::remove_file(node.dir.path().join("etc/region.yaml")).unwrap();
    node.signal(Signal::SIGHUP);
    node.wait_for(
        "reload: the files hold no document, so there is nothing to apply: give the right files. A reload deletes nothing; `tunny delete` does",
    );
    assert!(node.said(&["get", "status"]).contains(
        "WARNING    the last reload of etc was refused, and nothing was changed: the files hold no document"
    ));
    node.said(&["get", "vpc", "fresh"]);
}

#[test]
fn a_node_without_files_outlives_sighup_and_says_so() {
    let node = Node::with(&[]);
    node.signal(Signal::SIGHUP);
    node.wait_for("SIGHUP: this node was started without --config, so there is nothing to reload");
    node.said(&["get", "status"]);
}

#[test]
fn counters_are_saved_whole_however_signals_come() {
    for round in 0..6u64 {
        let mut node = Node::start();
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGTERM, Signal::SIGHUP] {
            node.signal(signal);
            std::thread::sleep(Duration::from_millis(round));
        }
        let status = node.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", node.log.lock().unwrap());
        let saved = std::fs::read_to_string(node.dir.path().join("state/counters")).unwrap();
        assert!(saved.lines().last().is_some_and(|l| l.starts_with("end ")), "{saved}");
        assert!(!node.dir.path().join("state/counters.new").exists());
    }
}

#[test]
fn a_node_that_is_told_to_stop_while_it_starts_ends_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let mut ended = 0;
    for ms in [30, 40, 50, 60, 80, 100] {
        let words =
            ["node", "--instance", "early", "--engine", "none", "--socket", "s", "--state", "state", "--config"];
        let mut command = std::process::Command::new(terminal::TUNNY);
        command.args(words).arg(terminal::example()).current_dir(dir.path()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        let status = child.wait().unwrap();
        // Before its first steps a process knows of no signal; then none kills it any more.
        ended += u32::from(status.success());
    }
    assert!(ended >= 3, "{ended}");
    assert!(std::fs::read_to_string(dir.path().join("state/counters")).unwrap().contains("\nend "));
}

fn metrics() -> (Node, std::net::SocketAddr) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let node = Node::with(&["--config", terminal::example().to_str().unwrap(), "--metrics", &port.to_string()]);
    node.wait_for("metrics on http://");
    (node, port)
}

fn fetch(port: std::net::SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(port).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a request to the API's socket is answered.
fn answered(node: &Node, path: &str) -> String {
    let socket = node.dir.path().join("s");
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// An option that is ignored answers another question than was asked.
#[test]
fn the_api_takes_no_option_that_it_does_not_know() {
    let node = Node::start();
    for path in ["status", "counters", "levels", "neighbours", "underlay", "states", "migration", "openapi.json"] {
        let answer = answered(&node, &format!("/v1/{path}?vpc=nosuch"));
        let said = "takes no options in its address, and has `vpc=nosuch`";
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains(said), "{path}: {answer}");
        assert!(answered(&node, &format!("/v1/{path}")).starts_with("HTTP/1.1 200"), "{path}");
    }
    for ms in ["0", "49", "60001"] {
        let answer = answered(&node, &format!("/v1/top?ms={ms}"));
        assert!(answer.starts_with("HTTP/1.1 422") && answer.contains("ms is 50 to 60000"), "{ms}: {answer}");
    }
    assert!(answered(&node, "/v1/top?ms=50").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_metrics_port_that_is_taken_is_a_warning_until_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap();
    let node = Node::with(&["--metrics", &port.to_string()]);
    node.wait_for("metrics cannot be served on");
    let warns = || node.said(&["get", "status"]).contains(&format!("metrics cannot be served on {port}"));
    assert!(warns());
    drop(taken);
    node.wait_for("metrics on http://");
    assert!(!warns());
}

#[test]
fn strangers_do_not_hold_the_metrics() {
    let (_node, port) = metrics();
    assert!(
        fetch(port, "/metrics").starts_with("HTTP/1.1 200")
            && fetch(port, "/metrics?vms=all").contains("tunny_vms_left_out 0.0\n")
    );
    assert!(fetch(port, "/metrics?vms=nosuch").contains("there is no Vm named `nosuch`"));
    assert!(fetch(port, "/metrics?vm=x").starts_with("HTTP/1.1 400"), "{}", fetch(port, "/metrics?vm=x"));
    // Eight that say nothing hold the places of their address, and no longer than five seconds.
    let begun = Instant::now();
    let silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(port).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(200));
    let mut refused = String::new();
    TcpStream::connect(port).unwrap().read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("8 from this address"), "{refused}");
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Half a head is no head.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHo");
        let mut rest = String::new();
        let _ = stream.read_to_string(&mut rest);
        assert!(rest.starts_with("HTTP/1.1 408") && rest.ends_with("no request within 5 s\n"), "{rest}");
    }
    assert!((4.0..12.0).contains(&begun.elapsed().as_secs_f64()), "{:?}", begun.elapsed());
    assert!(fetch(port, "/metrics").starts_with("HTTP/1.1 200"));
}

/// Sixty-four connections at a time: one less, as many, one more, for which the oldest that is idle makes room.
#[test]
fn the_metrics_have_places_for_sixty_four() {
    use nix::sys::socket::{bind, connect, socket, AddressFamily, SockFlag, SockType, SockaddrIn};
    let (_node, port) = metrics();
    let from = |last: u8| -> TcpStream {
        let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
        bind(std::os::fd::AsRawFd::as_raw_fd(&stream), &SockaddrIn::new(127, 0, 1, last, 0)).unwrap();
        connect(std::os::fd::AsRawFd::as_raw_fd(&stream), &SockaddrIn::new(127, 0, 0, 1, port.port())).unwrap();
        let stream = TcpStream::from(stream);
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    let answer = |mut stream: TcpStream| {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    };
    let mut held: Vec<TcpStream> = (0..63).map(|n| from(1 + n / 8)).collect();
    std::thread::sleep(Duration::from_millis(200));
    assert!(answer(from(100)).starts_with("HTTP/1.1 200"), "the sixty-fourth");
    std::thread::sleep(Duration::from_millis(100));
    held.push(from(101));
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    assert!(answer(from(102)).starts_with("HTTP/1.1 200"), "the sixty-fifth");
    assert!(begun.elapsed() < Duration::from_secs(4), "before the idle ones are out of time: {:?}", begun.elapsed());
    let mut text = String::new();
    let _ = held[0].read_to_string(&mut text);
    assert!(text.starts_with("HTTP/1.1 503") && text.contains("64 connections are open"), "the oldest: {text}");
}

#[test]
fn a_scrape_of_all_vms_holds_ten_thousand() {
    let (node, port) = metrics();
    let has = node.said(&["get", "vm", "-o", "json"]).matches("\"kind\"").count();
    let mut text = VPC.replace("NAME", "many").replace("77", "7778");
    let vm = |n: usize| {
        let (b, c) = (n / 250, n % 250 + 1);
        format!("---\n{{apiVersion: tunny/v1, kind: Vm, metadata: {{name: v{n}}}, spec: {{vpc: many, addresses: [172.16.{b}.{c}], mac: \"06:00:00:00:{b:02x}:{c:02x}\", nc: host-a}}}}\n")
    };
    (has..9999).for_each(|n| text += &vm(n));
    for (all, left_out) in [(9999, 0), (10_000, 0), (10_001, 1), (10_002, 2)] {
        node.write("more.yaml", &text);
        node.said(&["apply", "--yes", "more.yaml"]);
        let answer = fetch(port, "/metrics?vms=all");
        let series = answer.lines().filter(|l| l.starts_with("tunny_vm_packets_total{")).count();
        assert_eq!(series, all - left_out, "of {all} VMs");
        assert!(answer.contains(&format!("tunny_vms_left_out {left_out}.0\n")), "of {all} VMs");
        text = vm(all);
    }
}

/// A state as an earlier version left it, with addresses that are refused today.
#[test]
fn a_state_with_addresses_that_are_refused_today_starts_and_names_them() {
    use model::{AddressRange, Addresses, Documents, Object, Vm};
    use store::Store;
    let dir = tempfile::tempdir().unwrap();
    let example = |name: &str| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let mut docs: Documents = model::parse_files(&[example("internet.yaml")]).unwrap();
    let vm = docs.puts.iter().find_map(|item| match &item.object {
        Object::Vm(vm) => Some(Vm {
            name: Some("old".into()),
            addresses: Addresses::new(&["169.254.7.7".parse().unwrap()]).unwrap(),
            mac: "02:00:00:00:77:77".parse().unwrap(),
            ..vm.clone()
        }),
        _ => None,
    });
    docs.put(Object::Vm(vm.unwrap()));
    for item in &mut docs.puts {
        if let Object::PublicPool(pool) = &mut item.object {
            let [first, last] = ["169.254.9.0", "169.254.9.255"].map(|a| a.parse().unwrap());
            pool.ranges.push(AddressRange { first, last });
        }
    }
    {
        let (mut store, mut model, _) = Store::open(&dir.path().join("state")).unwrap();
        model.apply(&docs).unwrap();
        store.append(&docs, &model).unwrap();
    }
    // From the journal first, then from the snapshot.
    let mut dir = Some(dir);
    for from in ["journal", "snapshot"] {
        let node = Node::in_dir(dir.take().unwrap(), &[]);
        let status = node.said(&["get", "status"]);
        assert!(
            status.contains(
                "WARNING    Vm old has an address that an earlier version took: 169.254.0.0/16 is link-local"
            ),
            "{from}: {status}"
        );
        assert!(
            status.contains("remove it with `tunny delete vm old`") && status.contains("PublicPool "),
            "{from}: {status}"
        );
        let vms = node.said(&["get", "vm", "-o", "json"]);
        let count = serde_json::from_str::<serde_json::Value>(&vms).unwrap().as_array().unwrap().len();
        let expected = docs.puts.iter().filter(|i| matches!(i.object, Object::Vm(_))).count();
        assert_eq!(count, expected, "{from}: nothing else is lost");
        if from == "journal" {
            // A new one is refused all the same.
            node.write("new.yaml", &vm_again(&vms));
            let out = node.command(&["apply", "--yes", "new.yaml"]).output().unwrap();
            assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("link-local"), "{out:?}");
            let state = node.dir.path().join("state");
            let kept = tempfile::tempdir().unwrap();
            node.signal(Signal::SIGTERM);
            std::thread::sleep(Duration::from_millis(500));
            std::fs::create_dir(kept.path().join("state")).unwrap();
            for entry in
                std::fs::read_dir(&state).unwrap().map(|e| e.unwrap()).filter(|e| e.file_type().unwrap().is_file())
            {
                std::fs::copy(entry.path(), kept.path().join("state").join(entry.file_name())).unwrap();
            }
            let (mut store, model, _) = Store::open(&kept.path().join("state")).unwrap();
            store.begin_compaction().unwrap().run().unwrap();
            assert_eq!(model.never_forwarded().count(), 2);
            dir = Some(kept);
        } else {
            node.said(&["delete", "vm", "old", "--yes"]);
        }
    }
}

/// The Vm `old` of a listing as a document with another name and MAC address.
fn vm_again(listing: &str) -> String {
    let all: serde_json::Value = serde_json::from_str(listing).unwrap();
    let mut vm = all.as_array().unwrap().iter().find(|v| v["metadata"]["name"] == "old").unwrap().clone();
    vm["metadata"]["name"] = "newer".into();
    vm["spec"]["mac"] = "02:00:00:00:77:78".into();
    vm["spec"]["addresses"] = serde_json::json!(["169.254.7.8"]);
    vm.to_string()
}

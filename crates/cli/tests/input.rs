// SPDX-License-Identifier: Apache-2.0
//! Commands against odd files, full disks and readers that go away. No node is needed.

#[path = "../../commandline/tests/program/mod.rs"]
mod program;

use program::said;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const TUNNY: &str = env!("CARGO_BIN_EXE_tunny");

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/region.yaml")
}

fn tunny(args: &[&str]) -> Command {
    let mut command = Command::new(TUNNY);
    command.args(args).stdin(Stdio::null());
    command
}

#[test]
fn a_full_disk_is_a_plain_error_and_a_reader_that_left_is_none() {
    let example = example().display().to_string();
    let lines = [
        "version".to_string(),
        "version -o json".into(),
        "--help".into(),
        "get --help".into(),
        "cli-reference".into(),
        format!("validate {example}"),
        format!("validate -o json {example}"),
        format!("host-commands host-a --config {example}"),
        format!("trace vni=100 src=10.0.0.11 dst=10.0.0.12 udp from=192.0.2.11 --config {example}"),
    ];
    lines.iter().for_each(|words| program::prints_or_says_why(TUNNY, words));
}

#[test]
fn what_holds_no_configuration_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let empty = dir.path().join("folder");
    std::fs::create_dir(&empty).unwrap();
    std::fs::create_dir(empty.join("not-a-file.yaml")).unwrap();
    for command in ["validate", "apply"] {
        for (path, wanted) in [
            (&empty, "has no file that ends in"),
            (&socket, "it is a socket, not a file"),
            (&dir.path().join("absent"), "No such file"),
        ] {
            let out = tunny(&[command, path.to_str().unwrap()]).output().unwrap();
            assert!(out.status.code() == Some(1) && said(&out).contains(wanted), "{command}: {}", said(&out));
        }
    }
}

#[test]
fn a_pipe_is_read_to_its_end_and_waiting_for_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut child =
        tunny(&["validate", fifo.to_str().unwrap()]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Nobody writes: after two seconds the command says what it waits for.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.take().unwrap()), &mut line).unwrap();
    assert!(line.contains("reading the pipe") && line.contains("fifo"), "{line}");
    std::fs::write(&fifo, std::fs::read(example()).unwrap()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(said(&out), "23 documents, no errors\n");
}

#[test]
fn standard_input_has_many_names_and_every_form() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = dir.path().join("s.tny");
    let made =
        tunny(&["validate", "--snapshot", snapshot.to_str().unwrap(), example().to_str().unwrap()]).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    let ndjson = "{\"apiVersion\": \"tunny/v1\", \"kind\": \"Vpc\", \"metadata\": {\"name\": \"a\"}, \"spec\": {\"vni\": 1}}\n\
                  {\"apiVersion\": \"tunny/v1\", \"kind\": \"Vpc\", \"metadata\": {\"name\": \"b\"}, \"spec\": {\"vni\": 2}}\n";
    let forms = [(std::fs::read(example()).unwrap(), 23), (std::fs::read(&snapshot).unwrap(), 23), (ndjson.into(), 2)];
    for name in ["-", "/dev/stdin"] {
        for (content, count) in &forms {
            let mut child = tunny(&["validate", name])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(content).unwrap();
            let out = child.wait_with_output().unwrap();
            assert_eq!(said(&out), format!("{count} documents, no errors\n"), "{name}");
        }
    }
}

#[test]
fn a_snapshot_replaces_files_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let snapshot = |to: &Path| {
        tunny(&["validate", "--snapshot", to.to_str().unwrap(), example().to_str().unwrap()]).output().unwrap()
    };
    let (file, neighbour) = (dir.path().join("s.tny"), dir.path().join("s.new"));
    std::fs::write(&neighbour, "precious").unwrap();
    assert!(snapshot(&file).status.success() && snapshot(&file).status.success());
    assert_eq!(std::fs::read_to_string(&neighbour).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    // A device stays a device (a node of the test's own: were it replaced, the machine would miss it).
    let device = dir.path().join("full");
    if Command::new("mknod").arg(&device).args(["c", "1", "7"]).status().is_ok_and(|s| s.success()) {
        let out = snapshot(&device);
        assert!(!out.status.success() && said(&out).contains("No space left"), "{}", said(&out));
        assert!(std::os::unix::fs::FileTypeExt::is_char_device(&device.metadata().unwrap().file_type()));
    }
    let nowhere = said(&snapshot(Path::new("/nonexistent/s.tny")));
    assert_eq!(nowhere.matches("cannot write").count(), 1, "{nowhere}");
}

#[test]
fn a_file_named_twice_counts_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("region.yaml");
    std::fs::copy(example(), &file).unwrap();
    let out = tunny(&["validate", dir.path().to_str().unwrap(), file.to_str().unwrap()]).output().unwrap();
    assert_eq!(said(&out), "23 documents, no errors\n");
}

#[test]
fn numbers_out_of_range_are_refused_before_anything_waits() {
    for words in
        ["top --once --interval 1e9", "top --once --interval 0", "capture --seconds nan", "capture --sample 32"]
    {
        let out = tunny(&words.split(' ').collect::<Vec<_>>()).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{words}: {}", said(&out));
    }
}

#[test]
fn host_commands_take_no_word_that_a_shell_could_misread() {
    let local = ["host-commands", "h1", "--local", "192.0.2.11", "--gateway", "192.0.2.1", "--vni", "100"];
    let with = |more: &[&str]| tunny(&[&local[..], more].concat()).output().unwrap();
    let good = with(&["--port", "t;$(id),02:00:00:00:00:01,100"]);
    assert!(good.status.success(), "{}", said(&good));
    let script = String::from_utf8(good.stdout).unwrap();
    assert_eq!((script.matches("'t;$(id)'").count(), script.matches("t;$(id)").count()), (4, 4), "{script}");
    for (port, wanted) in [
        ("a b,02:00:00:00:00:01,100", "is no interface name"),
        ("-x,02:00:00:00:00:01,100", "is no interface name"),
        ("tap0,01:00:00:00:00:01,100", "group address"),
        ("tap0,02:00:00:00:00:01,0", "is no VNI"),
        ("tap0,02:00:00:00:00:01,200", "which the host does not serve"),
    ] {
        let out = with(&[&format!("--port={port}")]);
        assert!(!out.status.success() && said(&out).contains(wanted), "{port}: {}", said(&out));
    }
    for (name, local, gateway) in [
        ("h\nreboot", "192.0.2.11", "192.0.2.1"),
        ("h", "224.0.0.1", "192.0.2.1"),
        ("h", "192.0.2.1", "192.0.2.1"),
        ("h", "192.0.2.1", "::1"),
    ] {
        let out =
            tunny(&["host-commands", name, "--local", local, "--gateway", gateway, "--vni", "1"]).output().unwrap();
        assert!(!out.status.success() && out.stdout.is_empty(), "{name} {local} {gateway}: {}", said(&out));
    }
    let json =
        tunny(&["host-commands", "host-a", "-o", "json", "--config", example().to_str().unwrap()]).output().unwrap();
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&value["nc"], &value["steps"][0]["argv"][0]), (&"host-a".into(), &"ip".into()));
    assert!(!value["withoutPort"].as_array().unwrap().is_empty(), "{value}");
}

#[test]
fn a_replay_never_harms_a_file() {
    use node::describe::Description;
    let dir = tempfile::tempdir().unwrap();
    let (input, output) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    let mut writer = node::pcap::PcapWriter::new(std::fs::File::create(&input).unwrap()).unwrap();
    let words = "vni=100 src=10.0.0.11 dst=10.0.0.12 udp from=192.0.2.11";
    let frame = words.parse::<Description>().unwrap().frame(0xc000_0201, 0, 4789).unwrap();
    writer.write(0, &frame).unwrap();
    writer.flush().unwrap();
    let whole = std::fs::read(&input).unwrap();
    let replay = |from: &Path, to: &Path| {
        let mut command = tunny(&["replay", "--config", example().to_str().unwrap()]);
        command.arg(from).arg(to).output().unwrap()
    };
    // In and out are one file, by whatever name.
    let link = dir.path().join("link.pcap");
    std::os::unix::fs::symlink(&input, &link).unwrap();
    for to in [&input, &link] {
        let out = replay(&input, to);
        assert!(!out.status.success() && said(&out).contains("is the capture that is read"), "{}", said(&out));
    }
    assert_eq!(std::fs::read(&input).unwrap(), whole);
    // A capture that is cut off leaves what was there before, and nothing else.
    let cut = dir.path().join("cut.pcap");
    std::fs::write(&cut, &whole[..whole.len() - 5]).unwrap();
    std::fs::write(&output, "precious").unwrap();
    let out = replay(&cut, &output);
    assert!(!out.status.success() && said(&out).contains("ends in the middle"), "{}", said(&out));
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "precious");
    assert!(replay(&input, &output).status.success());
    assert!(std::fs::read(&output).unwrap().len() > 24);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing temporary is left");
    // A device is written as it is.
    assert!(replay(&input, Path::new("/dev/null")).status.success());
    assert!(said(&replay(&input, Path::new("/dev/full"))).contains("No space left"));
}

/// An unassigned protocol over IPv6 that a rule for any protocol would allow is refused: the trace never says that it is allowed.
#[test]
fn a_trace_of_a_protocol_that_no_rule_names_does_not_say_allowed() {
    let dir = std::env::temp_dir().join(format!("tunny-unnamed-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let config = dir.join("edge.yaml");
    let trace = |rule: &str, next: u8| {
        let documents = format!(
            "{{apiVersion: tunny/v1, kind: Gateway, metadata: {{name: e}}, spec: {{role: filter, wires: [ens1=ens2]}}}}\n---\n\
{{apiVersion: tunny/v1, kind: Vpc, metadata: {{name: red}}, spec: {{vni: 100}}}}\n---\n\
{{apiVersion: tunny/v1, kind: Server, metadata: {{name: web}}, spec: {{vpc: red, port: ens1, addresses: ['2001:db8:64::10']}}}}\n---\n\
{{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {{name: g}}, spec: {{rules: ['{rule}', 'egress allow any any']}}}}\n---\n\
{{apiVersion: tunny/v1, kind: SecurityBinding, metadata: {{name: b}}, spec: {{vpc: red, servers: [web], groups: [g]}}}}\n"
        );
        std::fs::write(&config, documents).unwrap();
        let addresses = "20010db8000000000000000000000099".to_string() + "20010db8006400000000000000000010";
        let frame = format!("02000000000102000000000286dd600000000008{next:02x}40{addresses}0102030405060708");
        let out = tunny(&[
            "trace",
            "--config",
            config.to_str().unwrap(),
            "--ifindex",
            "2",
            "--hex",
            &frame,
            "--engine",
            "user",
        ])
        .output()
        .unwrap();
        said(&out)
    };
    for next in [147, 252, 253, 254] {
        let text = trace("ingress allow any any", next);
        assert!(text.contains("ext_header_refused") && !text.contains("ingress allowed"), "{text}");
        assert!(
            text.contains("ingress not allowed by group g, rules[0]: ingress allow any any")
                && text.contains("needs a rule that names it"),
            "{text}"
        );
        let text = trace(&format!("ingress allow {next} any"), next);
        assert!(!text.contains("ext_header_refused") && text.contains("ingress allowed by group g"), "{text}");
    }
    let text = trace("ingress allow any any", 89);
    assert!(text.contains("ingress allowed by group g"), "{text}");
    std::fs::remove_dir_all(&dir).unwrap();
}

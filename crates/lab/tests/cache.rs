// SPDX-License-Identifier: Apache-2.0
//! `tunny-lab cache` from the shell: every kind of input, every output, and what bad input gets.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

const LAB: &str = env!("CARGO_BIN_EXE_tunny-lab");
const FLOWS: &str = "table=0,priority=10,in_port=1 actions=load:1->NXM_NX_REG0[],goto_table:1\n\
    table=0,priority=10,in_port=2 actions=load:2->NXM_NX_REG0[],goto_table:1\n\
    table=1,priority=5,ip,nw_dst=10.0.0.0/8 actions=goto_table:2\n\
    table=1,priority=9,ip,nw_dst=10.9.0.0/16 actions=drop\n\
    table=2,priority=5,tcp,tp_dst=80 actions=output:3\n\
    table=2,priority=1 actions=output:4\n";

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    }
}

fn tunny(args: &[&str]) -> Output {
    Command::new(LAB).arg("cache").args(args).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let out = tunny(&[args, &["-o", "json"]].concat());
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// What stands on standard error of a command that must fail and print nothing else.
fn refused(args: &[&str]) -> String {
    let out = tunny(args);
    assert!(!out.status.success(), "{args:?} was taken");
    assert!(out.stdout.is_empty(), "{args:?}: nothing is half done");
    String::from_utf8(out.stderr).unwrap()
}

fn four_caches(caches: &Value, packets: u64) {
    let names: Vec<_> = caches.as_array().unwrap().iter().map(|c| c["cache"].as_str().unwrap()).collect();
    assert_eq!(names, ["exact", "megaflow", "gigaflow", "adaptive"]);
    for cache in caches.as_array().unwrap() {
        let hits = cache["hit_percent"].as_f64().unwrap();
        let misses = cache["misses"].as_u64().unwrap();
        assert!((hits - 100.0 * (packets - misses) as f64 / packets as f64).abs() < 0.01, "{cache}");
        assert!(cache["entries"].as_u64().unwrap() > 0 && cache["coverage"].as_f64().unwrap() >= 1.0, "{cache}");
    }
}

const TRACE: &str = "# time packet\n0.0 in_port=1,tcp,nw_src=1.1.1.1,nw_dst=10.0.0.1,tp_dst=80\n\
    0.5 in_port=2,tcp,nw_src=1.1.1.1,nw_dst=10.0.0.1,tp_dst=80\n1.0 in_port=1,tcp,nw_src=1.1.1.2,nw_dst=10.0.0.1,tp_dst=80\n\
    1.5 in_port=1,tcp,nw_src=1.1.1.1,nw_dst=10.0.0.1,tp_dst=81\n";

#[test]
fn a_text_trace_goes_through_four_caches() {
    let folder = Folder::new();
    let (flows, trace) = (folder.file("flows", FLOWS), folder.file("trace", TRACE));
    let caches = json(&["compare", "--flows", &flows, "--trace", &trace]);
    four_caches(&caches, 4);
    assert_eq!(caches[0]["misses"], 4, "four headers");
    assert_eq!(caches[1]["misses"], 3, "the source address does not matter");
}

/// A pcap file with these frames, a second apart.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::new();
    for word in [0xa1b2_c3d4u32, 4 << 16 | 2, 0, 0, 65_535, 1] {
        all.extend(word.to_ne_bytes());
    }
    // The version is two numbers of 16 bits.
    all[4..8].copy_from_slice(&[2u16.to_ne_bytes(), 4u16.to_ne_bytes()].concat());
    for (second, frame) in frames.iter().enumerate() {
        for word in [second as u32, 0, frame.len() as u32, frame.len() as u32] {
            all.extend(word.to_ne_bytes());
        }
        all.extend(frame);
    }
    all
}

fn tcp(last: u8, port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 1, 1, 1, last, 10, 0, 0, 1, 0x12, 0x34]);
    frame.extend(port.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn a_pcap_file_goes_through_four_caches() {
    let folder = Folder::new();
    let flows = folder.file("flows", FLOWS);
    let good = folder.file("good.pcap", pcap(&[tcp(1, 80), tcp(2, 80), tcp(1, 80), tcp(1, 81)]));
    let caches = json(&["compare", "--flows", &flows, "--pcap", &good, "--in-port", "2"]);
    four_caches(&caches, 4);
    assert_eq!((&caches[0]["misses"], &caches[1]["misses"]), (&Value::from(3), &Value::from(2)));
    let mut short = tcp(2, 80);
    short.truncate(30);
    let cut = folder.file("cut.pcap", pcap(&[tcp(1, 80), short.clone(), tcp(2, 80)]));
    let out = tunny(&["compare", "--flows", &flows, "--pcap", &cut, "-o", "json"]);
    let caches: Value = serde_json::from_slice(&out.stdout).unwrap();
    let traffic = &caches[0]["traffic"];
    assert_eq!((&caches[0]["packets"], &traffic["left_out"]), (&Value::from(2), &Value::from(1)), "{traffic}");
    let (said, why) =
        (String::from_utf8_lossy(&out.stderr), "packet 2: the packet ends after 30 bytes, within the IPv4 header");
    assert!(said.contains(&format!("cut.pcap: 1 of 3 packets are left out, first {why}")), "{said}");
    let bad = folder.file("bad.pcap", pcap(&[short]));
    let error = refused(&["compare", "--flows", &flows, "--pcap", &bad]);
    assert!(error.contains("bad.pcap: none of its 1 packets can be read; packet 1: the packet ends"), "{error}");
    let none = folder.file("none.pcap", "not a capture");
    let error = refused(&["compare", "--flows", &flows, "--pcap", &none]);
    assert!(error.contains("none.pcap: this is neither a pcap nor a pcapng file"), "{error}");
    let linked = |link: u32, frame: Vec<u8>| {
        let mut all = pcap(&[frame]);
        all[20..24].copy_from_slice(&link.to_ne_bytes());
        folder.file(&format!("{link}.pcap"), all)
    };
    let ip = tcp(1, 80)[14..].to_vec();
    let cooked = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0, 8, 0][..], &ip].concat();
    for file in [linked(101, ip), linked(113, cooked)] {
        let caches = json(&["compare", "--flows", &flows, "--pcap", &file]);
        assert_eq!(caches[0]["traffic"]["dropped"], 0, "{file}: it goes out by port 3");
    }
    let error = refused(&["compare", "--flows", &flows, "--pcap", &linked(105, tcp(1, 80))]);
    assert!(
        error.contains("the capture has link type 105, but one of 1, 101, 228, 229, 113, 276 is needed"),
        "{error}"
    );
    let empty = folder.file("empty.pcap", pcap(&[]));
    assert!(refused(&["compare", "--flows", &flows, "--pcap", &empty]).contains("no packet"));
}

#[test]
fn a_workload_that_changes_is_seen_over_time_and_on_a_page() {
    let folder = Folder::new();
    let page = folder.0.path().join("page.html").display().to_string();
    let small = ["--rules", "acl1_1k", "--flow-count", "400", "--entries", "64", "--coverage-seconds", "1"];
    let of = |more: &[&str]| json(&[&["compare", "--workload", "psc"], &small[..], more].concat());
    let plain = of(&[]);
    let changed = of(&["--new-workload"]);
    let span = |r: &Value| r[1]["timeline"].as_array().unwrap().last().unwrap()["seconds"].as_f64().unwrap();
    assert!(span(&changed) > 1.9 * span(&plain), "twice as long");
    let all = of(&["--strategies", "--sweep", "--change-rules", "4", "--change-seconds", "1", "--html", &page]);
    let one = &all[0];
    for churn in one["churn"].as_array().unwrap() {
        let rates = churn["kpps"].as_array().unwrap();
        assert_eq!((rates.len(), churn["interval_seconds"].as_f64()), (40, Some(0.025)), "{churn}");
        assert!(churn["rules"].as_u64() > Some(0) && churn["kpps_before"].as_f64() > Some(0.0), "{churn}");
    }
    assert_eq!(one["sweep"].as_array().unwrap().len(), 5);
    let names: Vec<_> = one["strategies"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["random", "one to one", "disjoint", "optimal"]);
    let html = std::fs::read_to_string(Path::new(&page)).unwrap();
    for word in ["<svg", "megaflow", "adaptive", "published triton", "% of the rate before", "time a packet takes"] {
        assert!(html.to_lowercase().contains(word), "the page has no {word}");
    }
}

#[test]
fn bad_lines_are_named_with_file_line_and_column() {
    let folder = Folder::new();
    let flows = folder.file("flows", FLOWS);
    let packet = ["--packet", "in_port=1,tcp,nw_dst=10.0.0.1,tp_dst=80"];
    let bad = [
        ("table=0,priority=1,nosuch=3 actions=drop\n", ":1:20:"),
        ("table=0 actions=drop\n\ntable=1,ip,nw_dst=10.0.0.300 actions=drop\n", ":3:"),
        ("table=0 actions=outptu:3\n", ":1:17:"),
        ("table=0 actions=output:3,\ntable=999 actions=drop\n", ":2:7:"),
    ];
    for (n, (text, place)) in bad.iter().enumerate() {
        let file = folder.file(&format!("bad{n}"), text);
        let error = refused(&[&["explain", "--flows", &file], &packet[..]].concat());
        assert!(error.contains(&format!("bad{n}{place}")), "{text}: {error}");
    }
    for (text, place) in
        [("0.0 in_port=1\nx in_port=1\n", ":2:1:"), ("0.0 in_port=1,nosuch=3\n", ":1:15:"), ("0.0\n", ":1:1:")]
    {
        let trace = folder.file("trace", text);
        let error = refused(&["compare", "--flows", &flows, "--trace", &trace]);
        assert!(error.contains(&format!("trace{place}")), "{text}: {error}");
    }
    let trace = folder.file("back", "1.0 in_port=1\nx in_port=1\n0.5 in_port=2\n");
    let error = refused(&["compare", "--flows", &flows, "--trace", &trace]);
    assert!(
        error.contains("back:2:1:") && error.contains("back:3:1: the time 0.5 lies before 1.0 of line 1"),
        "{error}"
    );
    let rules = folder.file(
        "acl1_1k",
        "@10.0.0.0/8 1.1.1.1/32 0 : 1 0 : 1 0x06/0xFF\n@10.0.0.0/33 1.1.1.1/32 0 : 1 0 : 1 0x06/0xFF\n",
    );
    let dir = Path::new(&rules).parent().unwrap().display().to_string();
    let error = refused(&["compare", "--workload", "psc", "--rules", "acl1_1k", "--classbench", &dir]);
    assert!(error.contains("acl1_1k:2:2:"), "{error}");
    let error = refused(&["explain", "--flows", &flows, "--packet", ""]);
    assert_eq!(
        error,
        "tunny-lab: --packet is empty: write at least a field, as `in_port=1` or `tcp,nw_dst=10.0.0.1`\n"
    );
    let error = refused(&["explain", "--flows", &flows, "--packet", "in_port=1,nosuch=1"]);
    assert!(error.contains("--packet:1:11:"), "{error}");
}

#[test]
fn what_a_lenient_import_leaves_out_is_named_counted_and_said_where_traffic_meets_it() {
    let folder = Folder::new();
    let flows = folder.file(
        "flows",
        "priority=5,ip actions=encap(ethernet),output:1\npriority=4,udp,nosuch=3 actions=output:7\npriority=1 actions=output:2\n",
    );
    let trace = folder.file("trace", "0 in_port=1,ip\n1 in_port=1,ip\n2 in_port=1,arp\n3 in_port=1,arp\n");
    let args = ["compare", "--flows", &flows, "--trace", &trace];
    let error = refused(&args);
    assert!(error.contains("flows:1:23: \"encap\" is not supported: packets are Ethernet here"), "{error}");
    assert!(error.contains("flows:2:16: \"nosuch\" is not a field"), "{error}");
    assert!(error.contains("--lenient goes on: flows with what is not supported are taken and counted"), "{error}");
    let mixed = folder.file("mixed", "actions=decap\nactions=output:99999\n");
    let error = refused(&["explain", "--flows", &mixed, "--packet", "ip"]);
    let advice =
        "with --lenient 1 of these would be taken, which is only not supported; the other 1 must be mended first";
    assert!(error.contains(advice) && !error.contains("--lenient goes on"), "{error}");
    let error = refused(&["explain", "--flows", &mixed, "--packet", "ip", "--lenient"]);
    assert!(error.contains("99999") && !error.contains("--lenient"), "{error}");
    let group = folder.file("group", "actions=group:1\ngroup_id=1,type=all,properties=1,bucket=actions=output:1\n");
    let error = refused(&["explain", "--flows", &group, "--packet", "ip"]);
    assert!(error.contains("not a property") && !error.contains("--lenient"), "{error}");
    let out = tunny(&[&args[..], &["--lenient"]].concat());
    assert!(out.status.success());
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(said.lines().filter(|l| l.contains("unsupported: ")).count(), 2, "{said}");
    let table = String::from_utf8_lossy(&out.stdout);
    let met = "2 of 4 packets: the packet reached the flow in line 1, of which \"encap(ethernet)\" is not supported";
    assert!(table.contains(met), "{table}");
    for cache in json(&[&args[..], &["--lenient"]].concat()).as_array().unwrap() {
        let broken = &cache["broken_off"];
        assert_eq!((broken.as_array().unwrap().len(), &broken[0]["passes"]), (1, &Value::from(2)), "{cache}");
        assert_eq!(cache["misses"], 3, "{cache}");
    }
    let error = refused(&[&args[..], &["--lenient", "--change-rules", "9"]].concat());
    assert!(error.contains("--change-rules 9: flows: there are no flows in table 9; there are some in 0"), "{error}");
}

/// Five sources and six destinations are thirty ways, however many whole traversals stand beside their parts.
#[test]
fn coverage_counts_a_way_once() {
    let folder = Folder::new();
    let sources = (1..=5).map(|n| format!("table=0,priority=5,ip,nw_src=10.0.0.{n} actions=resubmit(,1)\n"));
    let passes = (1..=6).map(|n| format!("table=1,priority=5,ip,nw_dst=10.1.0.{n} actions=output:{}\n", n + 1));
    let flows = folder.file("flows", sources.chain(passes).collect::<String>());
    let packet = |k: u32| {
        let (to, port) = if k < 6 { (k % 6, k) } else { (k % 5, 1) };
        format!(
            "{k} in_port=1,tcp,nw_src=10.0.0.{},nw_dst=10.1.0.{},nw_ttl=64,tp_src={port},tp_dst=80\n",
            k % 5 + 1,
            to + 1
        )
    };
    let trace = folder.file("trace", (0..30).map(packet).collect::<String>());
    let caches = json(&["compare", "--flows", &flows, "--trace", &trace, "--coverage-seconds", "5"]);
    for cache in &caches.as_array().unwrap()[2..] {
        assert_eq!(
            (&cache["coverage"], &cache["coverage_detail"]["counted"]["kind"]),
            (&30.0.into(), &"exact".into()),
            "{}",
            cache["cache"]
        );
    }
    let entries = caches[3]["entries"].as_u64().unwrap();
    assert!(entries > 11, "whole traversals beside the parts: {entries}");
}

#[test]
fn a_loop_of_resubmits_is_bounded_and_says_why() {
    let folder = Folder::new();
    let flows = folder.file("flows", "table=0 actions=resubmit(,1)\ntable=1 actions=resubmit(,0)\n");
    let out = tunny(&["explain", "--flows", &flows, "--packet", "in_port=1", "-o", "json"]);
    assert!(!out.status.success());
    let pass: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(pass["failed"].as_str().unwrap().contains("resubmits"), "{}", pass["failed"]);
    let wide: String = (0..12).map(|n| format!("table={n} actions=resubmit(,{0}),resubmit(,{0})\n", n + 1)).collect();
    let wide = folder.file("wide", wide);
    let out = tunny(&["explain", "--flows", &wide, "--packet", "in_port=1"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("\n    … 8151 more steps …\n") && said.lines().count() < 140, "{said}");
    let out = tunny(&["explain", "--flows", &wide, "--packet", "in_port=1", "-o", "json"]);
    let long: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((long["steps"].as_array().unwrap().len(), &long["steps_left_out"]), (1000, &Value::from(7191)));
    assert_eq!(pass["datapath_actions"], "drop");
    let trace = folder.file("trace", "0 in_port=1\n1 in_port=1\n");
    let caches = json(&["compare", "--flows", &flows, "--trace", &trace]);
    for cache in caches.as_array().unwrap() {
        assert_eq!(
            (&cache["misses"], &cache["counters"]["uncacheable"]),
            (&Value::from(2), &Value::from(2)),
            "{cache}"
        );
    }
}

#[test]
fn a_loop_through_the_connection_tracker_says_why_it_ends() {
    let folder = Folder::new();
    let flows = folder.file("loop.flows", "ip actions=ct(table=0)\n");
    let out = tunny(&["explain", "--flows", &flows, "--packet", "in_port=1,ip"]);
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && said.contains("Broken off: more than 64 passes"), "{said}");
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = Folder::new();
    let (flows, none) = (folder.file("a.flows", "actions=output:1\n"), folder.file("none.flows", "\n"));
    for (args, why) in [
        (vec!["--workload", "ofd", "--trace", "/nonexistent"], "cannot be used with"),
        (vec!["--workload", "ofd", "--pcap", "/nonexistent"], "cannot be used with"),
        (vec!["--workload", "ofd", "--in-port", "7"], "cannot be used with"),
        (vec!["--workload", "ofd", "--lenient"], "cannot be used with"),
        (vec!["--flows", &flows, "--trace", "/nonexistent", "--in-port", "7"], "cannot be used with"),
        (vec!["--flows", &flows, "--port", "a=1", "--port", "a=2"], "--port a=2: it has number 1 already"),
        (vec!["--flows", &flows, "--rules", "fw1_1k"], "cannot be used with"),
        (vec!["--flows", &flows, "--locality", "low"], "cannot be used with"),
        (vec!["--flows", &none], "there are no flows in"),
        (vec!["--workload", "ofd", "--tables", "32", "--entries", "16777216"], "at most 67108864"),
        (vec!["--workload", "ofd", "--idle", "nan"], "from 0 to 1000000 seconds"),
        (vec!["--workload", "ofd", "--coverage-seconds=-1"], "from 0 to 1000000 seconds"),
    ] {
        let error = refused(&[&["compare"], &args[..]].concat());
        assert!(error.contains(why), "{args:?}: {error}");
    }
}

#[test]
fn an_explanation_has_the_parts_that_it_is_compared_by() {
    let folder = Folder::new();
    let flows = folder.file("flows", FLOWS);
    let pass = json(&["explain", "--flows", &flows, "--packet", "in_port=1,tcp,nw_dst=10.0.0.1,tp_dst=80"]);
    let steps = pass["steps"].as_array().unwrap();
    let tables: Vec<_> = steps.iter().map(|s| s["table"].as_u64().unwrap()).collect();
    assert_eq!(tables, [0, 1, 2]);
    for step in steps {
        assert!(step["priority"].is_u64() && step["match"].is_string() && step["actions"].is_string(), "{step}");
    }
    assert_eq!(pass["datapath_actions"], "3");
    assert!(pass["final_packet"].as_str().unwrap().contains("nw_dst=10.0.0.1"));
    assert!(pass["megaflow_mask"].as_str().unwrap().contains("tp_dst"), "{}", pass["megaflow_mask"]);
    // A step is indented as long as a flow before it has something left to do.
    let nested = folder
        .file("nested", "actions=resubmit(,1),output:2\ntable=1 actions=resubmit(,2)\ntable=2 actions=output:3\n");
    let args = ["explain", "--flows", &nested, "--packet", "in_port=1"];
    let depths: Vec<Value> = json(&args)["steps"].as_array().unwrap().iter().map(|s| s["depth"].clone()).collect();
    assert_eq!(depths, [0, 1, 1]);
    let text = String::from_utf8(tunny(&args).stdout).unwrap();
    assert!(
        text.contains("\n 0. priority") && text.contains("\n     1. priority") && text.contains("\n        output:3\n"),
        "{text}"
    );
    let text = tunny(&["explain", "--flows", &flows, "--packet", "in_port=1,tcp,nw_dst=10.9.0.1"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("Datapath actions: drop"));
}

#[test]
fn a_switch_with_ports_learns_from_packet_to_packet() {
    let folder = Folder::new();
    let flows = folder.file("flows", "in_port=\"up link\" actions=normal\nactions=normal\n");
    let packet = |port: u16, from: u8, to: u8| {
        format!("--packet=in_port={port},dl_src=02:00:00:00:00:0{from},dl_dst=02:00:00:00:00:0{to}")
    };
    let packets = [packet(1, 1, 2), packet(2, 2, 1), packet(9, 3, 1)];
    let given = |ports: &'static str| {
        let mut args = vec!["explain", "--flows", &flows, "--port=up link=9", "--ports", ports];
        args.extend(packets.iter().map(String::as_str));
        json(&args)
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w["datapath_actions"].as_str().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(given("1-3,up link,LOCAL"), ["2,3,9,LOCAL", "1", "1"]);
    assert_eq!(given("1, 2"), ["2", "1", "drop"], "a port that the switch does not have");
    let said = refused(&["explain", "--flows", &flows, "--ports", "1-", "--packet", "in_port=1"]);
    assert!(said.contains("\"1-\" is no port"), "{said}");
    // A packet's length decides; without one both ways are told.
    let flows = folder.file("long", "actions=check_pkt_larger(1500)->reg0[0],resubmit(,1)\ntable=1,reg0=1 actions=output:2\ntable=1,reg0=0 actions=output:3\n");
    let steps =
        |packet: &str| json(&["explain", "--flows", &flows, "--packet", packet])["steps"].as_array().unwrap().len();
    assert_eq!((steps("in_port=1,tcp"), steps("in_port=1,tcp,packet_len=1501")), (3, 2));
}

#[test]
fn what_a_packet_does_not_do_is_explained() {
    let folder = Folder::new();
    let flows = folder.file("flows", "in_port=1 actions=group:7,output:2\nin_port=2 actions=output:2,output:3\n");
    let explain = |packet: &str| ["explain", "--flows", &flows, "--packet", packet].map(str::to_string);
    let remarks = |packet: &str| {
        let args = explain(packet);
        json(&args.each_ref().map(String::as_str))["steps"][0]["remarks"][0].as_str().unwrap().to_string()
    };
    let (group, back) = (remarks("in_port=1"), remarks("in_port=2"));
    assert_eq!(group, "group 7 does not exist: it and the actions behind it are not run");
    assert_eq!(back, "nothing is sent to port 2, by which the packet came in: only IN_PORT sends it back");
    let out = tunny(&explain("in_port=2").each_ref().map(String::as_str));
    assert!(String::from_utf8_lossy(&out.stdout).contains(&format!("    >> {back}\n")));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("flows name groups that do not exist: 7;"), "{said}");
    // Misspelt names are seen by what they lead to.
    let flows = folder.file("misspelt", "in_port=1 actions=resubmit(,1),output:uplnk\ntable=1 actions=goto_table:3\n");
    let out = tunny(&["explain", "--flows", &flows, "--packet", "in_port=1"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("flows lead to tables without flows: 3; packets are dropped there"), "{said}");
    assert!(said.contains("ports with a name only got numbers: uplnk=57344 (--port NAME=NUMBER"), "{said}");
    let many: String = (1..=30).map(|n| format!("in_port={n} actions=group:{n}\n")).collect();
    let out = tunny(&["explain", "--flows", &folder.file("many", many), "--packet", "ip"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains(", 19, 20 and 10 more; packets go no further"), "{said}");
}

const NAMED: &str = "table=Late,ip actions=output:2\ntable=Early,in_port=1 actions=resubmit:Late\ntable=Early,priority=1 actions=drop\n";

#[test]
fn the_table_in_which_packets_begin_is_said_and_can_be_chosen() {
    let folder = Folder::new();
    let (named, numbered) =
        (folder.file("named", NAMED), folder.file("numbered", "table=60,in_port=1 actions=output:2\n"));
    let explain = |flows: &str, more: &[&str]| {
        let out = tunny(&[&["explain", "--flows", flows, "--packet", "in_port=1,ip", "-o", "json"], more].concat());
        let pass: Value = serde_json::from_slice(&out.stdout).unwrap();
        let tables =
            pass["steps"].as_array().unwrap().iter().map(|s| s["table_name"].as_str().map(str::to_string)).collect();
        (tables, pass["datapath_actions"].as_str().unwrap().to_string(), String::from_utf8(out.stderr).unwrap())
    };
    let (tables, actions, said): (Vec<Option<String>>, _, _) = explain(&named, &[]);
    assert_eq!((tables.last().unwrap().as_deref(), actions.as_str()), (Some("Late"), "2"));
    assert!(said.contains("packets begin in table Late: tables with names do not say which is the first"), "{said}");
    let (tables, actions, said) = explain(&named, &["--table", "Early"]);
    let names: Vec<_> = tables.iter().flatten().map(String::as_str).collect();
    assert_eq!((names, actions.as_str(), said.as_str()), (vec!["Early", "Late"], "2", ""));
    let (_, actions, said) = explain(&numbered, &[]);
    assert_eq!(actions, "drop");
    assert!(said.contains("table 0 has no flows, so every packet is dropped there; there are flows in 60"), "{said}");
    assert_eq!(explain(&numbered, &["--table", "60"]).1, "2");
    for (flows, table, why) in [
        (&named, "Nowhere", "there are no flows in table Nowhere; there are some in Late, Early"),
        (&numbered, "61", "there are no flows in table 61; there are some in 60"),
        (&folder.file("flows", FLOWS), "1", "--table 1: there are flows in table 0"),
    ] {
        let error = refused(&["explain", "--flows", flows, "--packet", "ip", "--table", table]);
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn traffic_that_is_made_says_so_and_what_becomes_of_it() {
    let folder = Folder::new();
    let small = ["--flow-count", "50", "--coverage-seconds", "0"];
    let compare = |flows: &str, more: &[&str]| {
        let args = [&["compare", "--flows", flows], &small[..], more].concat();
        let table = String::from_utf8(tunny(&args).stdout).unwrap();
        (json(&args)[0]["traffic"].clone(), table)
    };
    // Nothing that is made comes from the connection tracker, so all of it ends in the first table.
    let tracked = folder.file("tracked", "table=0,ct_state=+trk,ip actions=resubmit(,60)\ntable=60 actions=output:2\n");
    let (traffic, table) = compare(&tracked, &[]);
    let packets = traffic["packets"].as_u64().unwrap();
    assert!(packets > 0 && traffic["dropped"] == packets && traffic["dropped_in_first_table"] == packets, "{traffic}");
    assert_eq!((&traffic["source"], &traffic["first_table"]), (&Value::from("made"), &Value::from("0")));
    assert!(table.contains("tracked (made traffic, not own), packets begin in table 0\n"), "{table}");
    assert!(
        table.contains(&format!("{packets} of {packets} packets are dropped, {packets} of them in table 0")),
        "{table}"
    );
    assert!(table.contains("No packet got past the first table"), "{table}");
    // Where table 0 is empty it begins where the flows are.
    let late = folder.file("late", "table=60,in_port=1 actions=resubmit(,61)\ntable=61,ip actions=output:2\n");
    let (traffic, _) = compare(&late, &[]);
    assert_eq!(traffic["first_table"], "60");
    assert!(traffic["dropped"].as_u64() < traffic["packets"].as_u64(), "{traffic}");
    let trace = folder.file("trace", "0 in_port=1,ip\n1 in_port=2,ip\n");
    let args = ["compare", "--flows", &late, "--trace", &trace, "--table", "60"];
    let traffic = json(&args)[0]["traffic"].clone();
    let counts = ["packets", "dropped", "dropped_in_first_table"].map(|name| traffic[name].as_u64().unwrap());
    assert_eq!((&traffic["source"], counts), (&Value::from("trace"), [2, 1, 1]));
    assert!(String::from_utf8_lossy(&tunny(&args).stdout).contains("late (own traffic), packets begin in table 60\n"));
}

#[test]
fn several_files_groups_and_names_of_ports_are_taken_by_compare_too() {
    let folder = Folder::new();
    let first = folder.file("first", "in_port=uplink actions=group:3\n");
    let second = folder.file("second", "in_port=vm actions=output:uplink\n");
    let groups = folder.file("groups", "group_id=3,type=all,bucket=actions=output:vm\n");
    let capture = folder.file("some.pcap", pcap(&[tcp(1, 80)]));
    let files =
        ["compare", "--flows", &first, "--flows", &second, "--groups", &groups, "--port", "vm=5", "--port", "uplink=1"];
    for (port, dropped) in [("vm", 0), ("uplink", 0), ("1", 0), ("5", 0), ("7", 1)] {
        let caches = json(&[&files[..], &["--pcap", &capture, "--in-port", port]].concat());
        assert_eq!(caches[0]["traffic"]["dropped"], dropped, "{port}");
    }
    let error = refused(&[&files[..], &["--pcap", &capture, "--in-port", "nosuch"]].concat());
    assert!(error.contains("--in-port nosuch: no port has this name"), "{error}");
    for option in ["--groups", "--port", "--table"] {
        let error = refused(&["compare", "--workload", "ofd", option, "a=1"]);
        assert!(error.contains("cannot be used with"), "{error}");
    }
}

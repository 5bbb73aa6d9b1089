// SPDX-License-Identifier: Apache-2.0
//! What an operator sees of sessions in a running node: `tunny get sessions` and `get ports` with their filters, the metrics, the
//! session log as JSON lines and as IPFIX; and timeouts that change without a restart. Without root they say so and pass.

mod region;

use lab::plan::{ELASTIC, PUBLIC, WEB4};
use region::{heard, region, wait, Region, Told};
use serde_json::Value;
use std::process::Stdio;

impl Region {
    /// A page of the web server, fetched by a VM.
    fn page(&self, vm: &str) {
        let page = self.names.namespace(vm).run(&format!("curl -s --max-time 5 http://{WEB4}/"));
        assert_eq!(page.unwrap(), "hello\n");
    }

    fn metric(&self, name: &str) -> f64 {
        let text: String = self.metrics();
        let line = text.lines().find(|l| l.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no metric {name}:\n{text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    fn metrics(&self) -> String {
        self.client().text("/metrics").unwrap()
    }
}

/// Short timeouts for what begins from now on, without a restart.
const SHORT: &str = "{apiVersion: tunny/v1, kind: Snat, metadata: {name: blue}, spec: {vpc: blue, pools: [public], \
                     ipv6Prefixes: ['fd10:0:0:1::/64'], timeouts: {tcpClosing: 1, icmp: 1}}}\n";

#[test]
fn sessions_ports_metrics_and_the_log_say_the_same() {
    let Some(region) = region("o") else { return };
    let log = region.names.dir().join("sessions.ndjson");
    region.log_to(log.to_str().unwrap());
    region.apply(SHORT);
    region.page("green-1");
    region.page("blue-1");
    let web = WEB4.to_string();

    // The same private address in two VPCs: two sessions, told apart by every filter.
    let of = |vpc: &str| region.get(&["--vpc", vpc, "--remote", &web, "--remote-port", "80", "--protocol", "tcp"]);
    let green = of("green");
    assert_eq!(green.len(), 1, "{green:?}");
    let s = &green[0];
    assert_eq!(
        (s["vm"].as_str(), s["direction"].as_str(), s["vpc"].as_str()),
        (Some("10.0.0.11"), Some("out"), Some("green"))
    );
    assert_eq!(s["state"], "time-wait", "{s}");
    assert!(s["packets"].as_u64() >= Some(8) && s["bytes"].as_u64() > Some(400), "{s}");
    let (vm_port, public, public_port) =
        (s["vmPort"].to_string(), s["public"].as_str().unwrap().to_string(), s["publicPort"].to_string());
    let same = |filters: &[&str]| {
        assert_eq!(region.get(filters).iter().map(|f| &f["publicPort"]).collect::<Vec<_>>(), [&s["publicPort"]])
    };
    same(&["--public", &public, "--public-port", &public_port]);
    same(&["--vpc", "green", "--vm", "10.0.0.11", "--vm-port", &vm_port]);
    same(&["--vpc", "green", "--state", "time-wait"]);
    assert_eq!(region.get(&["--state", "established", "--vpc", "green"]), Vec::<Value>::new());
    let cut = region.command(&["get", "sessions", "-o", "json", "--limit", "1"]).output().unwrap();
    assert_eq!(
        (cut.status.code(), String::from_utf8_lossy(&cut.stdout).lines().count()),
        (Some(3), 1),
        "a list that is cut says so"
    );
    let enough = [
        "get",
        "sessions",
        "-o",
        "json",
        "--vpc",
        "green",
        "--remote",
        &web,
        "--remote-port",
        "80",
        "--protocol",
        "tcp",
        "--limit",
        "1",
    ];
    assert_eq!(
        region.command(&enough).output().unwrap().status.code(),
        Some(0),
        "a limit that is just enough cuts nothing"
    );
    let table = region.tunny(&["get", "sessions", "--vpc", "green"]);
    assert!(
        table.lines().next().unwrap().starts_with("vpc ") && table.contains(&format!("{public}:{public_port}")),
        "{table}"
    );

    // As YAML each is a document; what nobody reads any more is no failure, and what there is not is named.
    let yaml = region.tunny(&["get", "sessions", "--vpc", "green", "-o", "yaml"]);
    assert_eq!(yaml.lines().filter(|l| *l == "---").count(), region.get(&["--vpc", "green"]).len(), "{yaml}");
    assert!(yaml.contains(&format!("\npublic: \"{public}\"\n")) && yaml.contains("\nstate: time-wait\n"), "{yaml}");
    for format in ["table", "json", "yaml"] {
        let mut unread = region.command(&["get", "sessions", "-o", format]);
        let mut unread = unread.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(unread.stdout.take());
        let out = unread.wait_with_output().unwrap();
        assert!(out.status.success() && out.stderr.is_empty(), "{format}: {out:?}");
    }
    for (filter, word, known) in
        [("--state", "bar", "time-wait, reset"), ("--protocol", "gre", "tcp, udp, icmp, icmpv6, and numbers")]
    {
        let out = region.command(&["get", "sessions", filter, word]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains(word) && said.contains(known), "{said}");
    }

    // Who holds this port, and how full is what?
    let ports: Value = serde_json::from_str(&region.tunny(&[
        "get",
        "ports",
        "--public-port",
        &public_port,
        "--public",
        &public,
        "-o",
        "json",
    ]))
    .unwrap();
    let holders = ports["holders"].as_array().unwrap();
    assert_eq!(holders.len(), 1, "{ports}");
    assert_eq!(
        (&holders[0]["vpc"], &holders[0]["vm"], &holders[0]["tcp"]),
        (&"green".into(), &"10.0.0.11".into(), &1.into())
    );
    let pool = ports["pools"].as_array().unwrap().iter().find(|p| p["pool"] == "public").unwrap();
    assert!(pool["held"].as_u64() >= Some(64) && pool["percent"].as_f64() > Some(0.0), "{pool}");
    assert!(region.tunny(&["get", "ports"]).contains("packets to and from the Internet"));
    // An elastic address and a forward belong to somebody, too, and who asks for one is told of no other.
    let rows = |args: &[&str]| -> Vec<String> {
        let text = region.tunny(&[&["get", "ports"], args].concat());
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines()
            .skip_while(|l| !l.starts_with("ELASTIC"))
            .skip(1)
            .take_while(|l| !l.is_empty())
            .map(words)
            .collect()
    };
    let (address, forward) = ("203.0.113.8 all all red 10.1.0.11 the same", "203.0.113.9 8080 tcp blue 10.0.0.12 5201");
    assert_eq!(rows(&[]), [address, forward]);
    assert_eq!(rows(&["--public", "203.0.113.8", "--public-port", "80"]), [address]);
    assert_eq!(
        (rows(&["--public-port", "8080", "--vpc", "blue"]), rows(&["--public-port", "8081", "--vpc", "blue"])),
        (vec![forward.to_string()], vec![])
    );
    assert!(region.tunny(&["get", "ports", "--public", "203.0.113.8"]).contains("no VM holds ports of a pool"));

    // The metrics are of the same numbers.
    assert_eq!(
        region.metric("tunny_vpc_sessions{vni=\"300\"") as usize,
        region.get(&["--vpc", "green", "--limit", "0"]).len()
    );
    // Served by the fast path is neither a session in TIME_WAIT nor a hairpin, of neither VPC, but a ping to the Internet.
    let fast = || [300, 200].map(|vni| region.metric(&format!("tunny_vpc_sessions_fast{{vni=\"{vni}\"")));
    let ping =
        |to: std::net::Ipv4Addr| region.names.namespace("green-1").run(&format!("ping -q -c 3 -i 0.2 {to}")).unwrap();
    let pass = |vpc: &str| {
        format!("{{apiVersion: tunny/v1, kind: Route, spec: {{vpc: {vpc}, prefix: {PUBLIC}, scope: internet}}}}\n")
    };
    region.apply(&[pass("green"), pass("red")].join("---\n"));
    ping(ELASTIC);
    let hairpins = region.get(&["--protocol", "icmp", "--state", "paired"]);
    assert_eq!(hairpins.len(), 2, "{hairpins:?}");
    assert_eq!(fast(), [0.0, 0.0]);
    ping(WEB4);
    assert_eq!(fast(), [1.0, 0.0]);
    assert_eq!(region.metric("tunny_pool_ports_held{pool=\"public\"}"), pool["held"].as_f64().unwrap());
    let (fast, software) = (
        region.metric("tunny_nat_packets_total{engine=\"fast\"}"),
        region.metric("tunny_nat_packets_total{engine=\"software\"}"),
    );
    assert!(software >= 6.0, "SYN, SYN-ACK and FINs of two connections: {software} in software, {fast} fast");
    assert_eq!(region.metric("tunny_session_log_lost_total"), 0.0);

    // The log has the start of both, and the end of blue's, whose timeout was made short.
    let records = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect()
    };
    let is = |r: &Value, event: &str, vni: u32| {
        r["event"] == event && r["vni"] == vni && r["protocol"] == 6 && r["remote"] == *web && r["remotePort"] == 80
    };
    let start = wait("the start in the log", || records().into_iter().find(|r| is(r, "start", 300)));
    assert_eq!(start["vpc"], "green");
    assert_eq!(
        (start["publicPort"].to_string(), start["vm"].as_str(), start.get("endMs")),
        (public_port, Some("10.0.0.11"), None)
    );
    let end = wait("the end in the log", || records().into_iter().find(|r| is(r, "end", 100)));
    assert_eq!((end["reason"].as_str(), end["state"].as_str()), (Some("closed"), Some("time-wait")));
    assert!(end["endMs"].as_u64() >= end["startMs"].as_u64() && end["packets"].as_u64() >= Some(8), "{end}");
    let begun = records().into_iter().find(|r| is(r, "start", 100)).unwrap();
    assert_eq!((&begun["startMs"], &begun["publicPort"]), (&end["startMs"], &end["publicPort"]));
    assert_eq!(of("blue"), Vec::<Value>::new(), "it has ended");
    assert!(region.metric("tunny_sessions_ended_total{reason=\"closed\"}") >= 1.0);
    assert!(!records().iter().any(|r| is(r, "end", 300)), "green's lives for four minutes");

    // Green's Snat goes: the plan says what ends by that, and then it does.
    let live = region.get(&["--vpc", "green", "--limit", "0"]).len();
    let mut change = region.command(&["delete", "--yes", "-o", "json", "snat", "green"]);
    let report: Value = serde_json::from_slice(&change.output().unwrap().stdout).unwrap();
    assert_eq!(report["plan"]["sessionsEnd"]["vpcs"]["green"], live, "{report}");
    assert!(report["text"].as_str().unwrap().contains(&format!("{live} live session")), "{report}");
    wait("green's end in the log", || {
        records().into_iter().find(|r| is(r, "end", 300) && r["reason"] == "translation")
    });
}

#[test]
fn an_ipfix_collector_is_told_of_starts_and_ends() {
    let Some(region) = region("f") else { return };
    let socket = region.collector();
    region.apply(SHORT);
    region.page("blue-1");
    // Of blue-1: natEvent 4 and 5 are NAT44 session create and delete.
    let mut told = Vec::new();
    let of = |told: &[Told], event: u128| {
        told.iter().find(|r| r.0 == 256 && r.1[&8] == 0x0a00_000b && r.1[&230] == event).cloned()
    };
    let end = wait("the end of the session", || {
        told.extend(heard(&socket));
        of(&told, 5)
    });
    let start = of(&told, 4).expect("a start before the end");
    assert_eq!(
        [7, 225, 227].map(|id| start.1[&id]),
        [7, 225, 227].map(|id| end.1[&id]),
        "the same ports and public endpoint"
    );
    assert_eq!(start.1[&225] >> 8, 0xcb_0071);
}

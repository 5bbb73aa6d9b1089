// SPDX-License-Identifier: Apache-2.0
//! What an operator sees of security groups in a running node: which rule decided about a packet, how often each did, refusals in the
//! log and at a collector, the punts of each VPC; and that a changed rule ends the connections that it no longer allows, those of its
//! own VPC alone, also if the node is killed meanwhile. Without root they say so and pass.

mod region;

use lab::plan;
use region::{heard, inside, region, wait, Region, Told};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const GREEN_2: &str = "10.2.0.12";
const BLUE_2: &str = "10.0.0.12";
/// The rules of green-2's group, besides those that a test adds.
const RULES: [&str; 4] = [
    "ingress allow tcp/6001 any",
    "ingress deny tcp/23 any priority 5",
    "ingress allow udp/9999 any",
    "egress allow any any",
];

fn group(name: &str, rules: &[&str]) -> String {
    let rules: String = rules.iter().map(|r| format!("  - {r}\n")).collect();
    format!("---\napiVersion: tunny/v1\nkind: SecurityGroup\nmetadata: {{name: {name}}}\nspec:\n  rules:\n{rules}")
}

/// Both ends of a TCP connection.
struct Connection {
    client: TcpStream,
    server: TcpStream,
}

impl Region {
    /// Tries to connect from a VM.
    fn try_connect(&self, from: &str, to: &str, port: u16) -> std::io::Result<TcpStream> {
        let to: SocketAddr = format!("{to}:{port}").parse().unwrap();
        inside(&self.names.namespace(from), move || TcpStream::connect_timeout(&to, Duration::from_secs(2)))
            .join()
            .unwrap()
    }

    fn listener(&self, at: &str, port: u16) -> TcpListener {
        inside(&self.names.namespace(at), move || TcpListener::bind(("0.0.0.0", port)).unwrap()).join().unwrap()
    }

    fn connection(&self, from: &str, at: &str, to: &str) -> Connection {
        let listener = self.listener(at, 6001);
        let client = self.try_connect(from, to, 6001).unwrap();
        let connection = Connection { client, server: listener.accept().unwrap().0 };
        assert!(connection.lives(), "{from} to {to}");
        connection
    }

    fn rules(&self, filters: &[&str]) -> Vec<Value> {
        serde_json::from_str(&self.tunny(&[&["get", "rules", "-o", "json"], filters].concat())).unwrap()
    }

    /// TCP sessions of green that are established.
    fn established(&self) -> usize {
        self.get(&["--vpc", "green", "--protocol", "tcp", "--state", "established"]).len()
    }
}

impl Connection {
    /// Whether data still arrives, from either end.
    fn lives(&self) -> bool {
        let passes = |mut from: &TcpStream, mut to: &TcpStream| {
            to.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            from.write_all(b"x").is_ok() && to.read_exact(&mut [0]).is_ok()
        };
        passes(&self.client, &self.server) && passes(&self.server, &self.client)
    }
}

#[test]
fn the_rule_that_decided_is_named_counted_and_logged() {
    let Some(region) = region("r") else { return };
    let log = region.names.dir().join("sessions.ndjson");
    region.log_to(log.to_str().unwrap());
    region.apply(&group("iperf", &RULES));
    drop(region.connection("green-1", "green-2", GREEN_2));
    let _nobody = region.listener("green-2", 23);
    assert!(region.try_connect("green-1", GREEN_2, 23).is_err(), "a rule denies it");
    assert!(region.try_connect("green-1", GREEN_2, 80).is_err(), "no rule allows it");

    // How often each rule decided.
    let all = region.rules(&["iperf"]);
    let texts: Vec<&str> = all.iter().map(|r| r["rule"].as_str().unwrap()).collect();
    assert_eq!(texts[..2], ["ingress allow tcp/6001 any priority 1000", "ingress deny tcp/23 any priority 5"]);
    let hits = |i: usize| all[i]["hits"].as_u64().unwrap();
    assert_eq!(hits(0), 1, "one connection, however many packets: {all:?}");
    assert!(hits(1) >= 1 && hits(2) == 0, "{all:?}");
    let unused: Vec<u64> = region.rules(&["iperf", "--unused"]).iter().map(|r| r["index"].as_u64().unwrap()).collect();
    assert!(unused.contains(&2) && !unused.contains(&0) && !unused.contains(&1), "{unused:?}");
    let table = region.tunny(&["get", "rules", "--unused"]).to_lowercase();
    assert!(table.starts_with("group ") && table.contains("udp/9999") && !table.contains("tcp/6001"), "{table}");
    let nobody = region.command(&["get", "rules", "nobody"]).output().unwrap();
    let said = String::from_utf8_lossy(&nobody.stderr);
    assert!(!nobody.status.success() && said.contains("there is no SecurityGroup named `nobody`"), "{said}");

    // Which rule would decide: of a running node and of its fast path with the software path behind it.
    let from = format!("from={}", plan::nc_address(0, true));
    for engine in ["user", "xdp"] {
        let trace = |port: &str| {
            let words = [
                "trace",
                "--engine",
                engine,
                "vni=300",
                "src=10.0.0.11",
                "dst=10.2.0.12",
                "tcp",
                "sport=7",
                port,
                from.as_str(),
            ];
            region.tunny(&words)
        };
        let allowed = trace("dport=6001");
        assert!(
            allowed.contains("ingress allowed by group iperf, rules[0]: ingress allow tcp/6001 any priority 1000"),
            "{allowed}"
        );
        let denied = trace("dport=23");
        assert!(
            denied.contains("ingress denied by group iperf, rules[1]: ingress deny tcp/23 any priority 5"),
            "{denied}"
        );
        assert!(denied.contains("filter_ingress"), "{denied}");
        let none = trace("dport=80");
        assert!(none.contains("ingress denied: no rule of its groups matches"), "{none}");
    }
    assert_eq!(region.rules(&["iperf"]), all, "a trace counts for nothing");

    // The log has verdicts: allowed ones as start and end of a session.
    let record = |port: u64, event: &str| {
        wait(event, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let records = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
            let end = |r: &Value| if r["vm"] == GREEN_2 { r["vmPort"].clone() } else { r["remotePort"].clone() };
            records.into_iter().find(|r| r["event"] == event && r["vni"] == 300 && end(r) == port)
        })
    };
    let (start, denied, no_rule) = (record(6001, "start"), record(23, "denied"), record(80, "denied"));
    assert_eq!((&start["verdict"], &start["remoteVni"], start.get("public")), (&"allow".into(), &300.into(), None));
    assert_eq!(
        (&denied["verdict"], &denied["group"], &denied["rule"]),
        (&"deny".into(), &"iperf".into(), &texts[1].into())
    );
    assert_eq!(
        (&denied["vm"], &denied["remote"], &denied["direction"]),
        (&"10.0.0.11".into(), &GREEN_2.into(), &"out".into())
    );
    assert!(denied["vmPort"].as_u64() > Some(1023), "the port that it comes from: {denied}");
    assert_eq!((&no_rule["verdict"], no_rule.get("rule")), (&"deny".into(), None));

    // What each VPC's packets cost the software path.
    let counters: Value = serde_json::from_str(&region.tunny(&["get", "counters", "-o", "json"])).unwrap();
    let green = counters["tenants"].as_array().unwrap().iter().find(|t| t["vni"] == 300).unwrap();
    assert!(
        green["punts"].as_u64() >= Some(4)
            && green["punts_limited"] == 0
            && green["drops"]["filter_ingress"].as_u64() >= Some(2),
        "{green}"
    );
    let table = region.tunny(&["get", "counters"]).to_lowercase();
    let row = table.lines().find(|l| l.starts_with("300 ")).unwrap();
    assert!(
        table.contains("punts limited") && row.split_whitespace().nth(5) == Some(&green["punts"].to_string()),
        "{table}"
    );
}

#[test]
fn what_a_vpcs_meter_did_is_shown() {
    let Some(region) = region("m") else { return };
    let mut vpc: Value = serde_json::from_str(&region.tunny(&["get", "vpc", "blue", "-o", "json"])).unwrap();
    vpc["apiVersion"] = "tunny/v1".into();
    vpc["spec"]["meter"] =
        serde_json::json!({"packets": {"committed": "1pps", "committedBurst": 2, "peak": "1pps", "peakBurst": 4}});
    region.apply(&vpc.to_string());
    let ping = lab::traffic::ping(&region.names.namespace("blue-1"), BLUE_2, 10, &["-i", "0.02"]).unwrap();
    assert!(ping.received > 0 && ping.received < 10, "{}", ping.output);
    let counters: Value = serde_json::from_str(&region.tunny(&["get", "counters", "-o", "json"])).unwrap();
    let of = |vni: u32| counters["tenants"].as_array().unwrap().iter().find(|t| t["vni"] == vni).unwrap().clone();
    let (meter, limited) = (of(100)["meter"].clone(), of(100)["drops"]["meter_vpc"].clone());
    assert!(meter[0].as_u64() >= Some(2) && meter[2].as_u64() > Some(0) && meter[2] == limited, "{}", of(100));
    assert_eq!(of(200)["meter"], serde_json::json!([0, 0, 0]), "red has none");
    let table = region.tunny(&["get", "counters"]);
    let shown = format!("{}/{}/{}", meter[0], meter[1], meter[2]);
    assert!(table.lines().any(|l| l.starts_with("100 ") && l.ends_with(&shown)), "{shown}: {table}");
}

#[test]
fn an_ipfix_collector_is_told_of_refusals() {
    let Some(region) = region("q") else { return };
    region.apply(&group("iperf", &RULES));
    let socket = region.collector();
    drop(region.connection("green-1", "green-2", GREEN_2));
    assert!(region.try_connect("green-1", GREEN_2, 23).is_err());
    let mut told = Vec::<Told>::new();
    // Flow denied (firewallEvent 3): who wanted to begin it is the source.
    let denied = wait("the refusal", || {
        told.extend(heard(&socket));
        told.iter().find(|r| r.1.get(&233) == Some(&3)).cloned()
    });
    assert_eq!(
        [8, 12, 11, 4, 351].map(|id| denied.1[&id]),
        [0x0a00_000b, 0x0a02_000c, 23, 6, 1 << 56 | 300],
        "{denied:?}"
    );
    let created = told.iter().find(|r| r.1.get(&233) == Some(&1)).expect("the allowed one, created");
    assert!([created.1[&7], created.1[&11]].contains(&6001) && created.1[&4] == 6, "{created:?}");
}

#[test]
fn a_rule_that_is_taken_away_ends_its_connections_and_no_others() {
    let Some(mut region) = region("w") else { return };
    let blue = "---\napiVersion: tunny/v1\nkind: SecurityBinding\nmetadata: {name: blue-2}\nspec: {vpc: blue, vms: [blue-2], groups: [blue]}\n";
    region.apply(&(group("iperf", &RULES) + &group("blue", &RULES) + blue));
    let other = region.connection("blue-1", "blue-2", BLUE_2);
    let cut = region.connection("green-1", "green-2", GREEN_2);
    assert_eq!(region.established(), 1);

    // Nobody sends: the sweep finds it, though no packet asks.
    let begun = Instant::now();
    region.apply(&group("iperf", &RULES[1..]));
    wait("the end of the connection", || (region.established() == 0).then_some(()));
    println!("ended {} ms after the change was asked for", begun.elapsed().as_millis());
    assert!(!cut.lives(), "what is sent belongs to no connection");
    assert!(other.lives(), "another tenant's connection");
    assert!(region.try_connect("green-1", GREEN_2, 6001).is_err());

    // The same if the node is killed before it has swept, and another takes over.
    region.apply(&group("iperf", &RULES));
    let cut = region.connection("green-1", "green-2", GREEN_2);
    // These are the rules of the file, which counts at every start.
    let file = [
        "ingress allow tcp/5201 any",
        "ingress allow icmp/8 any",
        "ingress allow icmpv6/128 any",
        "egress allow any any",
    ];
    region.apply(&group("iperf", &file));
    region.node().unwrap().process.kill();
    region.start_node().unwrap();
    wait("the end of the connection after the restart", || (region.established() == 0).then_some(()));
    assert!(!cut.lives() && other.lives());
    assert!(region.try_connect("green-1", GREEN_2, 6001).is_err());
}

// SPDX-License-Identifier: Apache-2.0
//! Text and snapshots that an operator hands over.

use super::{repository_files, sentence, Target};
use model::{Documents, Model};

const WORDS: &[&str] = &[
    "apiVersion: ",
    "kind: ",
    "metadata:",
    "name: ",
    "spec:",
    "Gateway",
    "Vpc",
    "Nc",
    "Vm",
    "Route",
    "Peering",
    "---\n",
    "\n  - ",
    "vni: ",
    "16777216",
    "-1",
    "10.0.0.0/33",
    "::/0",
    "fd00::1",
    "255.255.255.255",
    "true",
    "null",
    "!!str ",
    "&a ",
    "*a",
    "{",
    "[",
    "\t",
    "\u{0}",
    "1e9",
    "Gbit",
];

fn outcome(errors: &[model::ConfigError]) -> u64 {
    errors.first().map_or(1, |e| sentence(&e.to_string()))
}

/// Reads documents and, if they are good, puts them into an empty model.
fn read(name: &str, bytes: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(bytes);
    match model::parse_text(name, &text) {
        Err(errors) => {
            assert!(!errors.is_empty() && errors.len() <= model::ERRORS_MAX + 1);
            outcome(&errors)
        }
        Ok(documents) => match Model::new().apply(&documents) {
            Ok(_) => 2,
            Err(errors) => outcome(&errors).wrapping_add(3),
        },
    }
}

/// Configuration as YAML.
pub struct Yaml;

impl Target for Yaml {
    fn name(&self) -> &'static str {
        "yaml"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        read("fuzz.yaml", input)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        repository_files("examples", ".yaml")
    }
    fn words(&self) -> &'static [&'static str] {
        WORDS
    }
}

/// Configuration as NDJSON.
pub struct Ndjson;

impl Target for Ndjson {
    fn name(&self) -> &'static str {
        "ndjson"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        read("fuzz.ndjson", input)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let line = |kind: &str, spec: &str| {
            format!(
                "{{\"apiVersion\":\"tunny/v1\",\"kind\":\"{kind}\",\"metadata\":{{\"name\":\"a\"}},\"spec\":{spec}}}\n"
            )
        };
        vec![
            line("Vpc", "{\"vni\":100}").into_bytes(),
            line("Nc", "{\"address\":\"192.0.2.1\"}").into_bytes(),
            (line("Vpc", "{\"vni\":1}")
                + &line("Route", "{\"vpc\":\"a\",\"prefix\":\"10.0.0.0/8\",\"scope\":\"local\"}"))
                .into_bytes(),
        ]
    }
    fn words(&self) -> &'static [&'static str] {
        WORDS
    }
}

/// A binary snapshot: as it is, and with its checksums mended, so that what lies behind them is reached.
pub struct Snapshot;

impl Target for Snapshot {
    fn name(&self) -> &'static str {
        "snapshot"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let mut errors = Vec::new();
        Documents::default().read_bytes("fuzz", input, &mut errors);
        let kind = |r: Result<(Model, u64), model::SnapshotError>| match r {
            Ok(_) => 1,
            Err(e) => sentence(&e.to_string()),
        };
        let plain = kind(Model::from_snapshot(input));
        let sealed = model::bytes::reseal(input);
        plain.wrapping_mul(31).wrapping_add(kind(Model::from_snapshot(&sealed)))
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        for text in repository_files("examples", ".yaml") {
            let mut model = Model::new();
            let Ok(documents) = model::parse_text("example.yaml", &String::from_utf8_lossy(&text)) else { continue };
            if model.apply(&documents).is_ok() {
                let mut bytes = Vec::new();
                if model.write_snapshot(&mut bytes, 1).is_ok() {
                    out.push(bytes);
                }
            }
        }
        out
    }
}

/// Text cases.
pub struct Case;

impl Target for Case {
    fn name(&self) -> &'static str {
        "case"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        match testkit::case::parse("fuzz.case", &text, &|_| None) {
            Ok(cases) => cases.len().min(4) as u64,
            Err(e) => sentence(&e.to_string()),
        }
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        // Whole files are long; their paragraphs make better seeds.
        let files = [repository_files("tests/packets", ".case"), repository_files("tests/packets", ".tables")].concat();
        let paragraphs = |f: &Vec<u8>| {
            String::from_utf8_lossy(f).split("\n\n").step_by(4).map(|p| p.as_bytes().to_vec()).collect::<Vec<_>>()
        };
        files.iter().flat_map(paragraphs).take(200).collect()
    }
    fn words(&self) -> &'static [&'static str] {
        &[
            "case ",
            "tables\n",
            "  vpc ",
            "  nc ",
            "  route ",
            "send ",
            "forward ",
            "drop ",
            "answer ",
            " eth ",
            " ipv4 ",
            " udp ",
            " vxlan ",
            "\n",
            "=",
            "\"",
            "{",
            "0x",
            "99999999999",
            "::",
            "#",
        ]
    }
}

/// The short description of a packet for `tunny trace`, and hexadecimal text.
pub struct Description;

impl Target for Description {
    fn name(&self) -> &'static str {
        "describe"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        let hex = node::describe::from_hex(&text);
        if let Ok(bytes) = &hex {
            assert_eq!(node::describe::from_hex(&node::describe::to_hex(bytes)).ok().as_ref(), Some(bytes));
        }
        let described = match text.parse::<node::describe::Description>() {
            Err(e) => sentence(&e.to_string()),
            Ok(d) => match d.frame(0xc000_0201, 1, 4789) {
                Ok(frame) => frame.len().min(2) as u64,
                Err(e) => sentence(&e.to_string()).wrapping_add(7),
            },
        };
        described.wrapping_mul(2).wrapping_add(u64::from(hex.is_ok()))
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let texts = [
            "vni=100 src=10.0.0.2 dst=10.0.0.3 from=192.0.2.11 tcp sport=1 dport=2 ttl=3 len=100 df tos=1 outer-tos=2",
            "vni=100 src=fd00::2 dst=fd00::3 from=2001:db8::1 to=2001:db8::2 nd smac=02:00:00:00:00:01 dmac=02:00:00:00:00:02",
            "00 11 22:33-44 ff",
        ];
        texts.map(|t| t.as_bytes().to_vec()).to_vec()
    }
    fn words(&self) -> &'static [&'static str] {
        &[
            "vni=",
            "src=",
            "dst=",
            "from=",
            "to=",
            "arp",
            "nd",
            "icmp",
            "proto=",
            "len=",
            "9000",
            "65535",
            " ",
            "::ffff:1.2.3.4",
            "ttl=256",
        ]
    }
}

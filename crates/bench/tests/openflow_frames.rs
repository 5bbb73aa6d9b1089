// SPDX-License-Identifier: Apache-2.0
//! Frames through the same flows in Debian's Open vSwitch (user-space datapath, dummy ports) and in crate `pipeline`: a program by hand, random programs
//! from printed seeds (`TUNNY_SEED` adds one), real dumps. Without Open vSwitch it says so and passes.
use bench::ovs_frames::{frame, random_program, Frames, Pair, Sent};
use bench::ovs_trace::for_both;
use pipeline::text::{self, ImportOptions};
use pipeline::Key;
use rand::rngs::StdRng;
use rand::SeedableRng;

const PROGRAM: &str = include_str!("../../../examples/openflow.flows");

fn start() -> Frames {
    Frames::start().unwrap_or_else(|e| panic!("{e}"))
}

fn key(packet: &str) -> Key {
    text::packet(packet, &Default::default()).unwrap_or_else(|e| panic!("{packet}: {e}"))
}

/// Gives a packet in words to both; what was sent.
fn give(pair: &mut Pair<'_>, port: u16, packet: &str) -> Sent {
    let bytes = frame(&key(&format!("in_port={port},{packet}")), &mut StdRng::seed_from_u64(1));
    pair.give(port, &bytes).unwrap_or_else(|e| panic!("{packet}: {e}"))
}

/// The only frame that was sent, and by which port.
fn only(sent: &Sent) -> (u16, &[u8]) {
    let all: Vec<(u16, &[u8])> = sent.iter().flat_map(|(port, f)| f.iter().map(|f| (*port, &f[..]))).collect();
    assert_eq!(all.len(), 1, "{sent:02x?}");
    all[0]
}

fn none_differs(pair: &Pair<'_>) {
    let found = &pair.found;
    println!(
        "{} frames in, {} out, {} of them rewritten, {} flows refused by Open vSwitch",
        found.frames, found.sent, found.rewritten, found.refused
    );
    assert!(found.differences.is_empty(), "{} differ:\n{}", found.differences.len(), found.differences.join("\n"));
}

#[test]
fn a_program_with_translation_tags_groups_and_learning_sends_the_same_frames() {
    if !skip::have_tool("ovs-vswitchd", "openvswitch-switch") {
        return;
    }
    let mut frames = start();
    let mut pair = Pair::load(&mut frames, PROGRAM).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(pair.found.refused, 0, "the example is what Open vSwitch takes");
    const OUT: &str = "dl_src=0a:00:00:00:00:01,dl_dst=0a:00:00:00:00:fe";
    const BACK: &str = "dl_src=0a:00:00:00:00:fe,dl_dst=0a:00:00:00:00:02";
    // Out by port 1, translated, and back.
    let udp = format!("{OUT},udp,nw_src=10.0.0.5,nw_dst=203.0.113.7,nw_ttl=64,tp_src=4000,tp_dst=53");
    let sent = give(&mut pair, 1, &udp);
    let (port, translated) = only(&sent);
    assert_eq!((port, &translated[26..30]), (2, &[198, 51, 100, 1][..]), "its source is the public address");
    let translated = translated.to_vec();
    give(&mut pair, 1, &udp);
    let answer = format!("{BACK},udp,nw_src=203.0.113.7,nw_dst=198.51.100.1,nw_ttl=60,tp_src=53,tp_dst=4000");
    let sent = give(&mut pair, 2, &answer);
    assert_eq!((only(&sent).0, &only(&sent).1[30..34]), (1, &[10, 0, 0, 5][..]), "back to who asked");
    // An error about it: addresses outside and inside are those of the host.
    let mut error = frame(
        &key(&format!("in_port=2,{BACK},icmp,nw_src=192.0.2.9,nw_dst=198.51.100.1,nw_ttl=60,icmp_type=11,icmp_code=0")),
        &mut StdRng::seed_from_u64(2),
    );
    error.truncate(42);
    error.extend(&translated[14..]);
    let total = (error.len() - 14) as u16;
    error[16..18].copy_from_slice(&total.to_be_bytes());
    for (at, from, to) in [(24, 14, 34), (36, 34, error.len())] {
        error[at..at + 2].fill(0);
        let sum = wire::checksum::finish(wire::checksum::sum(&error[from..to]));
        error[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    let sent = pair.give(2, &error).unwrap_or_else(|e| panic!("{e}"));
    let (port, told) = only(&sent);
    assert_eq!((port, &told[30..34], &told[54..58]), (1, &[10, 0, 0, 5][..], &[10, 0, 0, 5][..]));
    // TCP both ways, with a checksum that is wrong, and what nobody asked for.
    let tcp = |flags: &str| {
        format!("{OUT},tcp,nw_src=10.0.0.5,nw_dst=203.0.113.7,nw_ttl=64,tp_src=4001,tp_dst=80,tcp_flags={flags}")
    };
    let back = |flags: &str| {
        format!("{BACK},tcp,nw_src=203.0.113.7,nw_dst=198.51.100.1,nw_ttl=60,tp_src=80,tp_dst=4001,tcp_flags={flags}")
    };
    assert!(give(&mut pair, 2, &back("syn|ack")).is_empty(), "nobody asked for it");
    for (port, packet) in [(1, tcp("syn")), (2, back("syn|ack")), (1, tcp("ack")), (2, back("ack"))] {
        assert_eq!(only(&give(&mut pair, port, &packet)).0, 3 - port, "{packet}");
    }
    let mut wrong = frame(&key(&format!("in_port=1,{}", tcp("ack"))), &mut StdRng::seed_from_u64(3));
    wrong[50] ^= 1;
    assert!(pair.give(1, &wrong).unwrap_or_else(|e| panic!("{e}")).is_empty(), "it is invalid");
    // Echo, told apart by its identifier; a server behind a public address; the TTL that runs out.
    let echo = format!("{OUT},icmp,nw_src=10.0.0.5,nw_dst=203.0.113.7,nw_ttl=64,icmp_type=8,icmp_code=0");
    assert_eq!(only(&give(&mut pair, 1, &echo)).0, 2);
    let reply = format!("{BACK},icmp,nw_src=203.0.113.7,nw_dst=198.51.100.1,nw_ttl=60,icmp_type=0,icmp_code=0");
    assert_eq!(only(&give(&mut pair, 2, &reply)).0, 1);
    let request =
        format!("{BACK},tcp,nw_src=203.0.113.8,nw_dst=198.51.100.2,nw_ttl=60,tp_src=9000,tp_dst=443,tcp_flags=syn");
    let sent = give(&mut pair, 2, &request);
    assert_eq!((only(&sent).0, &only(&sent).1[30..38]), (1, &[10, 0, 0, 80, 0x23, 0x28, 0x1f, 0x90][..]));
    let served =
        format!("{OUT},tcp,nw_src=10.0.0.80,nw_dst=203.0.113.8,nw_ttl=64,tp_src=8080,tp_dst=9000,tcp_flags=syn|ack");
    let sent = give(&mut pair, 1, &served);
    assert_eq!((only(&sent).0, &only(&sent).1[26..30]), (2, &[198, 51, 100, 2][..]));
    assert!(give(&mut pair, 1, &udp.replace("nw_ttl=64", "nw_ttl=1")).is_empty());
    // Tags come, change and go; copies of a group; the switch learns, and so do flows.
    for packet in
        [format!("dl_vlan=5,dl_vlan_pcp=3,{udp}"), format!("dl_vlan=6,{udp}"), format!("dl_vlan=7,{udp}"), udp.clone()]
    {
        assert!(!give(&mut pair, 3, &packet).is_empty(), "{packet}");
    }
    assert_eq!(give(&mut pair, 4, &udp).len(), 3, "a group of three");
    assert!(give(&mut pair, 5, "dl_src=0a:00:00:00:00:05,dl_dst=0a:00:00:00:00:06,dl_type=0x1234").is_empty());
    let sent = give(&mut pair, 6, "dl_src=0a:00:00:00:00:06,dl_dst=0a:00:00:00:00:05,dl_type=0x1234");
    assert_eq!(only(&sent).0, 5, "learned");
    let arp = "arp,arp_op=1,arp_spa=10.0.0.5,arp_tpa=10.0.0.6,arp_sha=0a:00:00:00:00:01";
    assert!(give(&mut pair, 1, &format!("{OUT},{arp}")).len() > 5, "flooded");
    assert_eq!(only(&give(&mut pair, 7, &format!("dl_src=0a:00:00:00:00:07,dl_dst=0a:00:00:00:00:01,{arp}"))).0, 1);
    assert!(give(&mut pair, 8, &udp).is_empty(), "a loop");
    pair.give_random(100, 7).unwrap_or_else(|e| panic!("{e}"));
    none_differs(&pair);
}

#[test]
fn a_program_with_every_kind_of_match_and_action_sends_the_same_frames() {
    const FEATURES: &str = include_str!("../../../tests/pipelines/features.flows");
    if !skip::have_tool("ovs-vswitchd", "openvswitch-switch") {
        return;
    }
    let mut frames = start();
    let mut pair = Pair::load(&mut frames, FEATURES).unwrap_or_else(|e| panic!("{e}"));
    pair.give_random(400, 5).unwrap_or_else(|e| panic!("{e}"));
    none_differs(&pair);
}

#[test]
fn random_programs_send_the_same_frames() {
    if !skip::have_tool("ovs-vswitchd", "openvswitch-switch") {
        return;
    }
    let mut frames = start();
    let wanted = std::env::var("TUNNY_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in (1..=8).chain(wanted) {
        println!("seed {seed}");
        let mut pair = Pair::load(&mut frames, &random_program(seed)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        pair.give_random(100, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        none_differs(&pair);
    }
}

/// Splits a text into words of names and what stands between them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut rest = text;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let end = rest.find(|c| of_name(c) != of_name(first)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(end);
        rest = behind;
        Some(word)
    })
}

/// A dump of which tables have numbers, as Open vSwitch wants them, and no meters, which it would have to have before.
fn numbered(text: &str) -> String {
    let lenient = ImportOptions { lenient: true, ..ImportOptions::default() };
    let program = text::import(text, &lenient).unwrap_or_else(|e| panic!("{e}")).pipeline;
    let number = |word: &str| program.names().tables.get(word).map(u8::to_string);
    let text: String = words(text).map(|word| number(word).unwrap_or_else(|| word.into())).collect();
    let mut parts = text.split("actions=meter:");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| format!("{text}actions={}", part.split_once(',').map_or("", |(_, rest)| rest)))
}

/// Ports that the switches here do not have are others.
fn small_ports(text: &str) -> String {
    let mut numbers: Vec<u32> = Vec::new();
    let mut before = ["", ""];
    let mut out = String::new();
    for word in words(text) {
        let is_port = matches!(before, ["in_port", "="] | ["output", ":"]);
        match word.parse().ok().filter(|number| is_port && *number > 12 && *number < 0xff00) {
            Some(number) => {
                let at = numbers.iter().position(|n| *n == number).unwrap_or_else(|| {
                    numbers.push(number);
                    numbers.len() - 1
                });
                out += &(at % 12 + 1).to_string();
            }
            None => out += word,
        }
        before = [before[1], word];
    }
    out
}

#[test]
fn real_dumps_send_the_same_frames() {
    let Some(folder) = skip::have_shared("data/ovs-pipelines") else { return };
    if !skip::have_tool("ovs-vswitchd", "openvswitch-switch") {
        return;
    }
    let mut frames = start();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        let (name, text) = (file.display(), std::fs::read_to_string(&file).unwrap());
        println!("{name}");
        let flows = small_ports(&for_both(&numbered(&text)));
        let mut pair = Pair::load(&mut frames, &flows).unwrap_or_else(|e| panic!("{name}: {e}"));
        pair.give_random(300, 11).unwrap_or_else(|e| panic!("{name}: {e}"));
        none_differs(&pair);
    }
}

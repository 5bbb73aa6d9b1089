// SPDX-License-Identifier: Apache-2.0
//! OpenFlow text: flows, groups, packets.

use super::{repository_files, sentence, Target};
use cache::workload::input;
use pipeline::frame;
use pipeline::text::{self, ImportOptions};
use pipeline::{Conntrack, Key, Pipeline};

const WORDS: &[&str] = &[
    "table=",
    "priority=",
    "actions=",
    "group_id=",
    "bucket=",
    "resubmit(,",
    "goto_table:",
    "ct(commit,",
    "nat(src=",
    "exec(",
    "learn(",
    "clone(",
    "conjunction(1,1/2)",
    "set_field:",
    "load:",
    "move:",
    "->",
    "NXM_NX_REG0[]",
    "NXM_OF_ETH_SRC[0..15]",
    "reg0=",
    "0x1/0xff",
    "ip,",
    "ipv6,",
    "arp,",
    "tcp,",
    "10.0.0.0/8",
    "2001:db8::/32",
    "0a:00:00:00:00:01",
    "ct_state=+trk-new",
    "vlan_tci=0x1000/0x1000",
    "output:",
    "in_port=",
    "\"a b\"",
    "\\\n",
    "#",
    "normal",
    "drop",
    "push_vlan:0x8100",
    "multipath(eth_src,1,hrw,3,0,",
    "bundle(eth_src,0,hrw,ofport,members:",
    "write_actions(",
    "exit",
    ",,",
    "((((",
    "18446744073709551616",
];

/// Flows and groups; what imports is run, and its matches are printed and read back.
pub struct Flows;

impl Target for Flows {
    fn name(&self) -> &'static str {
        "flows"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        let strict = text::import(&text, &ImportOptions::default());
        let lenient = text::import(&text, &ImportOptions { lenient: true, ..ImportOptions::default() });
        if let Err(errors) = &strict {
            let lines = text.split('\n').count() as u32;
            assert!(!errors.errors.is_empty() && errors.errors.len() <= 20);
            assert!(errors.errors.iter().all(|e| (1..=lines).contains(&e.line) && e.column >= 1));
        }
        match (&strict, &lenient) {
            (Ok(import), Ok(other)) => {
                assert_eq!((import.flows, other.unsupported.len()), (other.flows, 0));
                walk(&import.pipeline)
            }
            (Err(errors), Ok(import)) => {
                assert!(!import.unsupported.is_empty(), "a lenient import counts what a strict one refuses");
                walk(&import.pipeline) ^ sentence(&errors.errors[0].message)
            }
            (_, Err(errors)) => sentence(&errors.errors[0].message),
        }
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let files = repository_files("tests/pipelines", ".flows");
        let lines = files.iter().flat_map(|f| f.split(|b| *b == b'\n').map(<[u8]>::to_vec)).filter(|l| !l.is_empty());
        lines.chain(files.iter().cloned()).collect()
    }
    fn words(&self) -> &'static [&'static str] {
        WORDS
    }
}

/// Packets that match something, on their way.
fn walk(pipeline: &Pipeline) -> u64 {
    let mut rules: Vec<_> = pipeline.rules().collect();
    rules.sort_by_key(|(id, _)| *id);
    let mut ct = Conntrack::new(64);
    let mut kinds = 0u64;
    for (_, rule) in rules.iter().take(8) {
        let matching = rule.matching();
        let printed = text::format_match(&matching, pipeline.names());
        let again = text::matching(&printed, pipeline.names()).unwrap_or_else(|e| panic!("\"{printed}\": {e}"));
        assert_eq!(again, matching, "{printed}");
        let journey = pipeline.run(&matching.key, &mut ct, 0);
        let failed = journey.passes.iter().filter_map(|p| p.failed.as_ref()).count() as u64;
        kinds = kinds.wrapping_mul(31).wrapping_add(
            failed * 64 + (journey.passes.len() as u64).min(8) * 8 + (journey.outputs.len() as u64).min(7),
        );
        for pass in &journey.passes {
            let mut machine = pipeline::Machine::new(*pass.start());
            pass.run_range(0..pass.steps.len(), &mut machine, &mut Nobody);
            assert!(pass.failed.is_some() || machine.key == pass.end);
        }
    }
    kinds
}

struct Nobody;

impl pipeline::Sink for Nobody {
    fn output(&mut self, _: &pipeline::Target, _: &Key) {}
    fn ct(&mut self, _: &std::sync::Arc<pipeline::CtCall>, _: &mut Key) {}
}

/// Packets as ofproto/trace takes them: what is read is printed and read back.
pub struct Packets;

impl Target for Packets {
    fn name(&self) -> &'static str {
        "packet"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        let names = pipeline::Names::default();
        let _ = text::ct_state(&text);
        match text::packet(&text, &names) {
            Err(e) => sentence(&e.message),
            Ok(key) => {
                let printed = text::format_key(&key, &names);
                let again = text::packet(&printed, &names).unwrap_or_else(|e| panic!("\"{printed}\": {e}"));
                assert_eq!(text::format_key(&again, &names), printed);
                1
            }
        }
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let examples = [
            "in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1,tp_dst=80,tcp_flags=syn,nw_ttl=64",
            "in_port=2,icmp6,ipv6_src=fe80::1,ipv6_dst=ff02::1,icmp_type=135,icmp_code=0,nd_target=2001:db8::1",
            "arp,arp_op=1,arp_spa=10.0.0.1,arp_tpa=10.0.0.2,dl_vlan=5,dl_src=0a:00:00:00:00:01",
            "mpls,mpls_label=16,mpls_ttl=3,metadata=0x5,reg0=1,ct_state=trk|est,ct_label=0x1234567890abcdef1234567890abcdef",
        ];
        examples.iter().map(|e| e.as_bytes().to_vec()).collect()
    }
    fn words(&self) -> &'static [&'static str] {
        WORDS
    }
}

/// Text traces of packets, and frames of a capture: `tunny-lab cache compare` reads both from files.
pub struct Traces;

impl Target for Traces {
    fn name(&self) -> &'static str {
        "trace"
    }
    fn run(&mut self, input: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(input);
        let read = match input::parse("f", &text, &pipeline::Names::default()) {
            Ok(trace) => {
                assert!(!trace.packets.is_empty() && trace.packets.len() <= text.lines().count());
                assert!(trace.packets.windows(2).all(|w| w[0].time <= w[1].time));
                assert!(trace.packets.iter().all(|p| (p.flow as usize) < trace.headers.len()));
                1
            }
            Err(errors) => {
                assert!(!errors.errors.is_empty() && errors.errors.len() <= 20);
                for error in &errors.errors {
                    let input::TraceError::Line { line, column, what, .. } = error else { continue };
                    let at = text.lines().nth(line - 1).map_or(0, |l| l.chars().count());
                    assert!(*column >= 1 && *column <= at + 1, "column {column} of a line of {at}: {what}");
                }
                sentence(&errors.errors[0].to_string())
            }
        };
        let whole = frame::key_of(input, 3);
        for link in frame::LINKS {
            let _ = frame::captured(link, input, 3);
        }
        // What a frame says does not depend on what follows the part that is read. Below MPLS nothing says what is carried: a
        // header that is cut off there is none, and a longer frame has it.
        let mut longer = input.to_vec();
        longer.extend([0; 64]);
        if let (Ok(key), Ok(other)) = (&whole, frame::key_of(&longer, 3)) {
            let mpls = matches!(key.get(pipeline::Field::EthType), 0x8847 | 0x8848);
            assert!(mpls || key.get(pipeline::Field::NwProto) == other.get(pipeline::Field::NwProto));
        }
        read ^ whole.map_or_else(|what| sentence(&what), |key| key.get(pipeline::Field::EthType) as u64)
    }
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut tcp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0x20, 5, 8, 0];
        tcp.extend([0x45, 0x10, 0, 40, 0, 0, 0x40, 0, 63, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        tcp.extend([0x12, 0x34, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        let mut options = vec![0x33, 0x33, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 0, 255];
        options.extend([0xfe; 32]);
        options.extend([58, 0, 0, 0, 0, 0, 0, 0, 135, 0, 0, 0, 0, 0, 0, 0]);
        options.extend([0x20; 16]);
        options.extend([1, 1, 2, 0, 0, 0, 0, 2]);
        let text = b"# x\n0.5 in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80\n1 in_port=2,arp,arp_op=1\n".to_vec();
        vec![tcp, options, text]
    }
    fn words(&self) -> &'static [&'static str] {
        WORDS
    }
}

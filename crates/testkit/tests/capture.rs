// SPDX-License-Identifier: Apache-2.0
//! All packets of all cases as one capture, for a look with Wireshark: set TUNNY_CAPTURE to a file name.

use abi::IfIndex;
use node::pcap::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use std::path::Path;
use testkit::case::{self, Outcome};

#[test]
fn the_packets_of_all_cases_make_a_capture() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets"));
    let cases = case::read_dir(dir).unwrap_or_else(|e| panic!("{e}"));
    let mut bytes = Vec::new();
    let mut writer = PcapNgWriter::new(&mut bytes, "tunny").unwrap();
    let mut frames = Vec::new();
    for case in &cases {
        for input in case.inputs() {
            let mut put = |interface: u32, packet: &testkit::layers::Packet, what: &str| {
                let frame = packet.encode();
                let comment = format!("{}:{} {}: {what}", case.file, input.line, case.name);
                let name = ["in", "out"][interface as usize];
                writer.write(IfIndex(interface), name, 0, frame.len() as u32, &frame, &comment).unwrap();
                frames.push((interface, frame.len() as u32, frame, comment));
            };
            put(0, &input.packet, "in");
            if let Outcome::Forward(_, p) | Outcome::Answer(_, p) = &input.outcome {
                put(1, p, "out");
            }
            input.generated.iter().for_each(|(_, p)| put(1, p, "generated"));
        }
    }
    if let Ok(path) = std::env::var("TUNNY_CAPTURE") {
        std::fs::write(path, &bytes).unwrap();
    }
    let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
    let mut read = Vec::new();
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(p) = block.unwrap() else { continue };
        let [EnhancedPacketOption::Comment(comment)] = &p.options[..] else { panic!("no comment: {:?}", p.options) };
        read.push((p.interface_id, p.original_len, p.data.to_vec(), comment.to_string()));
    }
    assert_eq!(read, frames);
}

// SPDX-License-Identifier: Apache-2.0
//! All packets of all cases as one capture, for a look with Wireshark: set TUNNY_CAPTURE to a file name.

use std::path::Path;
use testkit::case::{self, Outcome};
use testkit::pcap::{Frame, Reader, Writer};

#[test]
fn the_packets_of_all_cases_make_a_capture() {
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/packets"));
    let cases = case::read_dir(dir).unwrap_or_else(|e| panic!("{e}"));
    let mut writer = Writer::new(Vec::new(), &["in", "out"]).unwrap();
    let mut frames = Vec::new();
    for case in &cases {
        for input in case.inputs() {
            let mut put = |interface, packet: &testkit::layers::Packet, what: &str| {
                let bytes = packet.encode();
                let comment = Some(format!("{}:{} {}: {what}", case.file, input.line, case.name));
                frames.push(Frame { interface, wire_len: bytes.len() as u32, bytes, comment, ..Frame::default() });
            };
            put(0, &input.packet, "in");
            if let Outcome::Forward(_, p) | Outcome::Answer(_, p) = &input.outcome {
                put(1, p, "out");
            }
            input.generated.iter().for_each(|(_, p)| put(1, p, "generated"));
        }
    }
    frames.iter().for_each(|f| writer.write(f).unwrap());
    let bytes = writer.finish().unwrap();
    if let Ok(path) = std::env::var("TUNNY_CAPTURE") {
        std::fs::write(path, &bytes).unwrap();
    }
    let read: Vec<Frame> = Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect();
    assert_eq!(read, frames);
}

// SPDX-License-Identifier: Apache-2.0
//! Capture files, as `tunny replay` reads them.

use super::{sentence, Target};
use abi::IfIndex;

/// pcap and pcapng.
pub struct Capture;

impl Target for Capture {
    fn name(&self) -> &'static str {
        "capture"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        replay(input)
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let frame = [0x5a; 60];
        let mut pcap = Vec::new();
        if let Ok(mut w) = node::pcap::PcapWriter::new(&mut pcap) {
            for n in 0..3 {
                let _ = w.write(n * 1_000_000_007, &frame[..20 * (n as usize + 1)]);
            }
            let _ = w.flush();
        }
        let mut ng = Vec::new();
        if let Ok(mut w) = node::pcap::PcapNgWriter::new(&mut ng, "fuzz") {
            for n in 0..3u32 {
                let _ = w.write(IfIndex(n), "eth", 5, 60, &frame, "why");
            }
            let _ = w.flush();
        }
        let swapped = {
            let mut s = pcap.clone();
            s.iter_mut().take(4).for_each(|b| *b = 0);
            s[..4].copy_from_slice(&[0xa1, 0xb2, 0xc3, 0xd4]);
            s
        };
        vec![pcap, ng, swapped]
    }
}

fn replay(input: &[u8]) -> u64 {
    let mut reader = match node::pcap::Reader::new(input) {
        Ok(reader) => reader,
        Err(e) => return sentence(&e.to_string()),
    };
    let mut packets = 0;
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => {
                assert!(packet.data.len() <= input.len(), "no packet is longer than the file");
                packets += 1;
            }
            Ok(None) => return packets.min(5),
            Err(e) => return sentence(&e.to_string()).wrapping_add(packets.min(5)),
        }
    }
}

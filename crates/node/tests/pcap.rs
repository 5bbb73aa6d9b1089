// SPDX-License-Identifier: Apache-2.0
//! Captures are read back as they were written; damage is an error and never a panic.

use abi::IfIndex;
use node::pcap::{Packet, PcapError, PcapNgWriter, PcapWriter, Reader};

fn all(bytes: &[u8]) -> Result<Vec<Packet>, PcapError> {
    let mut reader = Reader::new(bytes)?;
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet()? {
        packets.push(packet);
    }
    Ok(packets)
}

fn samples() -> [Vec<u8>; 2] {
    let mut plain = Vec::new();
    let mut writer = PcapWriter::new(&mut plain).unwrap();
    writer.write(1_700_000_000_123_456_789, &[1, 2, 3]).unwrap();
    writer.write(5, &[4; 61]).unwrap();
    let mut ng = Vec::new();
    let mut writer = PcapNgWriter::new(&mut ng, "tunny").unwrap();
    writer.write(IfIndex(3), "eth0", 1_700_000_000_123_456_789, 3, &[1, 2, 3], "vm_unknown").unwrap();
    writer.write(IfIndex(4), "eth1", 5, 61, &[4; 61], "").unwrap();
    [plain, ng]
}

#[test]
fn both_formats_are_read_back() {
    for bytes in samples() {
        let packets = all(&bytes).unwrap();
        assert_eq!(packets.len(), 2);
        assert_eq!(packets[0], Packet { time_ns: 1_700_000_000_123_456_789, length: 3, link: 1, data: vec![1, 2, 3] });
        assert_eq!(packets[1], Packet { time_ns: 5, length: 61, link: 1, data: vec![4; 61] });
    }
}

#[test]
fn a_big_endian_pcap_in_microseconds_is_read() {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 << 16 | 4, 0, 0, 65535, 1, 7, 9, 2, 60] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(&[8, 9]);
    assert_eq!(all(&bytes).unwrap(), [Packet { time_ns: 7_000_009_000, length: 60, link: 1, data: vec![8, 9] }]);
}

#[test]
fn damage_is_an_error_never_a_panic() {
    for bytes in samples() {
        for n in 0..bytes.len() {
            let _ = all(&bytes[..n]);
            for flip in [0xff, 0x80, 0x01] {
                let mut bad = bytes.clone();
                bad[n] ^= flip;
                let _ = all(&bad);
            }
        }
        assert!(matches!(all(&bytes[..bytes.len() - 1]), Err(PcapError::Damaged { packet: 1, .. })));
    }
    assert!(matches!(all(b"hello world, no capture"), Err(PcapError::NotACapture)));
    assert!(matches!(all(b""), Err(PcapError::NotACapture)));
}

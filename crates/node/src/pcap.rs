// SPDX-License-Identifier: Apache-2.0
//! Capture files: reads pcap (both resolutions, both byte orders) and pcapng, writes both.
//!
//! A reader takes one record at a time, so a capture may be larger than memory. Everything in a file is an outside byte:
//! lengths are checked, unknown blocks are skipped, a cut-off end is an error that names the packet.

use std::io::{self, Read, Write};

/// Longest record or block that is read, bytes.
const BLOCK_MAX: usize = 16 << 20;
const PCAPNG: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u32 = 1;

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no capture.
    #[error("this is neither a pcap nor a pcapng file; write one with tcpdump or wireshark")]
    NotACapture,
    /// Not Ethernet.
    #[error("the capture has link type {0}, but Ethernet (1) is needed; capture on the uplink itself, not on `any`")]
    LinkType(u32),
    /// None of the link types that are read.
    #[error("the capture has link type {link}, but one of {} is needed; 1 is Ethernet", .allowed.iter().map(u32::to_string).collect::<Vec<_>>().join(", "))]
    LinkTypes {
        /// What it has.
        link: u32,
        /// What can be read.
        allowed: &'static [u32],
    },
    /// Broken.
    #[error("the capture is damaged behind packet {packet}: {what}")]
    Damaged {
        /// Packets read before.
        packet: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// One packet of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Time, ns since the epoch of the capture.
    pub time_ns: u64,
    /// Length on the wire.
    pub length: u32,
    /// The link type, which says what header it begins with; 1 is Ethernet.
    pub link: u32,
    /// Bytes captured.
    pub data: Vec<u8>,
}

/// Reads a capture packet by packet.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    big_endian: bool,
    format: Format,
    packets: u64,
    /// Link types that are read.
    links: &'static [u32],
}

#[derive(Debug)]
enum Format {
    /// ns per unit of the sub-second field.
    Pcap { unit: u64, link: u32 },
    /// For each interface: link type, and units of time a second as (power of two?, exponent).
    PcapNg { interfaces: Vec<(u32, u8)> },
}

impl<R: Read> Reader<R> {
    /// Reads the head of a capture of Ethernet.
    pub fn new(source: R) -> Result<Self, PcapError> {
        Self::with_links(source, &[ETHERNET])
    }

    /// Reads the head of a capture of one of these link types.
    pub fn with_links(mut source: R, links: &'static [u32]) -> Result<Self, PcapError> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => PcapError::NotACapture,
            _ => PcapError::Io(e),
        })?;
        let format = Format::Pcap { unit: 1, link: ETHERNET };
        let mut reader = Self { source, big_endian: false, format, packets: 0, links };
        if u32::from_le_bytes(magic) == PCAPNG {
            reader.format = Format::PcapNg { interfaces: Vec::new() };
            reader.section()?;
            return Ok(reader);
        }
        let unit = |number: u32| match number {
            0xa1b2_c3d4 => Some(1000),
            0xa1b2_3c4d => Some(1),
            _ => None,
        };
        let (big_endian, unit) = match (unit(u32::from_le_bytes(magic)), unit(u32::from_be_bytes(magic))) {
            (Some(unit), _) => (false, unit),
            (_, Some(unit)) => (true, unit),
            _ => return Err(PcapError::NotACapture),
        };
        reader.big_endian = big_endian;
        let mut rest = [0; 20];
        reader.source.read_exact(&mut rest).map_err(|_| PcapError::NotACapture)?;
        let link = reader.u32(&rest, 16) & 0x0fff_ffff;
        reader.check_link(link)?;
        reader.format = Format::Pcap { unit, link };
        Ok(reader)
    }

    fn check_link(&self, link: u32) -> Result<(), PcapError> {
        match self.links {
            links if links.contains(&link) => Ok(()),
            [ETHERNET] => Err(PcapError::LinkType(link)),
            allowed => Err(PcapError::LinkTypes { link, allowed }),
        }
    }

    /// The next packet, `None` at the end.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        let packet = match self.format {
            Format::Pcap { unit, link } => self.pcap(unit, link)?,
            Format::PcapNg { .. } => self.pcapng()?,
        };
        self.packets += u64::from(packet.is_some());
        Ok(packet)
    }

    fn u32(&self, bytes: &[u8], at: usize) -> u32 {
        let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or([0; 4]);
        if self.big_endian {
            u32::from_be_bytes(four)
        } else {
            u32::from_le_bytes(four)
        }
    }

    fn u16(&self, bytes: &[u8], at: usize) -> u16 {
        let two = bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).unwrap_or([0; 2]);
        if self.big_endian {
            u16::from_be_bytes(two)
        } else {
            u16::from_le_bytes(two)
        }
    }

    fn damaged(&self, what: &'static str) -> PcapError {
        PcapError::Damaged { packet: self.packets, what }
    }

    /// Reads exactly `length` bytes; memory grows with what is really there.
    fn take(&mut self, length: usize) -> Result<Vec<u8>, PcapError> {
        let mut bytes = Vec::new();
        self.source.by_ref().take(length as u64).read_to_end(&mut bytes)?;
        if bytes.len() < length {
            return Err(self.damaged("the file ends in the middle of a record"));
        }
        Ok(bytes)
    }

    /// Reads `N` bytes, or nothing at the end of the file.
    fn head<const N: usize>(&mut self) -> Result<Option<[u8; N]>, PcapError> {
        let bytes = {
            let mut bytes = Vec::with_capacity(N);
            self.source.by_ref().take(N as u64).read_to_end(&mut bytes)?;
            bytes
        };
        match (bytes.len(), <[u8; N]>::try_from(bytes)) {
            (0, _) => Ok(None),
            (_, Ok(head)) => Ok(Some(head)),
            _ => Err(self.damaged("the file ends in the middle of a record")),
        }
    }

    fn pcap(&mut self, unit: u64, link: u32) -> Result<Option<Packet>, PcapError> {
        let Some(head) = self.head::<16>()? else { return Ok(None) };
        let (captured, length) = (self.u32(&head, 8) as usize, self.u32(&head, 12));
        if captured > BLOCK_MAX {
            return Err(self.damaged("a record is longer than 16 MiB"));
        }
        let time_ns = u64::from(self.u32(&head, 0)) * 1_000_000_000 + u64::from(self.u32(&head, 4)) * unit;
        Ok(Some(Packet { time_ns, length, link, data: self.take(captured)? }))
    }

    /// The rest of a section header block, of which the type has been read.
    fn section(&mut self) -> Result<(), PcapError> {
        let Some(head) = self.head::<8>()? else { return Err(PcapError::NotACapture) };
        self.big_endian = false;
        if self.u32(&head, 4) != BYTE_ORDER {
            self.big_endian = true;
            if self.u32(&head, 4) != BYTE_ORDER {
                return Err(PcapError::NotACapture);
            }
        }
        let length = self.u32(&head, 0) as usize;
        if !(28..=BLOCK_MAX).contains(&length) || !length.is_multiple_of(4) {
            return Err(self.damaged("a section header has an impossible length"));
        }
        self.take(length - 12)?;
        self.format = Format::PcapNg { interfaces: Vec::new() };
        Ok(())
    }

    fn pcapng(&mut self) -> Result<Option<Packet>, PcapError> {
        loop {
            let Some(kind) = self.head::<4>()? else { return Ok(None) };
            if u32::from_le_bytes(kind) == PCAPNG {
                self.section()?;
                continue;
            }
            let kind = self.u32(&kind, 0);
            let Some(length) = self.head::<4>()? else { return Err(self.damaged("a block has no length")) };
            let length = self.u32(&length, 0) as usize;
            if !(12..=BLOCK_MAX).contains(&length) || !length.is_multiple_of(4) {
                return Err(self.damaged("a block has an impossible length"));
            }
            let body = self.take(length - 8)?;
            let body = &body[..length - 12];
            match kind {
                1 => self.interface(body),
                6 => return self.enhanced(body).map(Some),
                3 => return self.simple(body).map(Some),
                _ => {}
            }
        }
    }

    fn interface(&mut self, body: &[u8]) {
        let link = u32::from(self.u16(body, 0));
        let (mut resolution, mut at) = (6u8, 8);
        // Options: code, length, value padded to four bytes; code 9 is if_tsresol.
        while at + 4 <= body.len() {
            let (code, length) = (self.u16(body, at), self.u16(body, at + 2) as usize);
            match (code, body.get(at + 4)) {
                (0, _) => break,
                (9, Some(value)) if length == 1 => resolution = *value,
                _ => {}
            }
            at += 4 + length.next_multiple_of(4);
        }
        if let Format::PcapNg { interfaces } = &mut self.format {
            interfaces.push((link, resolution));
        }
    }

    fn link_and_resolution(&self, interface: usize) -> Result<(u32, u8), PcapError> {
        let Format::PcapNg { interfaces } = &self.format else { return Err(PcapError::NotACapture) };
        match interfaces.get(interface) {
            None => Err(self.damaged("a packet names an interface that was not described")),
            Some((link, resolution)) => self.check_link(*link).map(|()| (*link, *resolution)),
        }
    }

    fn enhanced(&mut self, body: &[u8]) -> Result<Packet, PcapError> {
        let (link, resolution) = self.link_and_resolution(self.u32(body, 0) as usize)?;
        let units = u64::from(self.u32(body, 4)) << 32 | u64::from(self.u32(body, 8));
        let data =
            body.get(20..20 + self.u32(body, 12) as usize).ok_or(self.damaged("a packet is longer than its block"))?;
        let time_ns = if resolution & 0x80 != 0 {
            (u128::from(units) * 1_000_000_000 >> (resolution & 0x7f)) as u64
        } else {
            (u128::from(units) * 1_000_000_000 / 10u128.pow(u32::from(resolution.min(30)))) as u64
        };
        Ok(Packet { time_ns, length: self.u32(body, 16), link, data: data.to_vec() })
    }

    fn simple(&mut self, body: &[u8]) -> Result<Packet, PcapError> {
        let (link, _) = self.link_and_resolution(0)?;
        let length = self.u32(body, 0);
        let data = body.get(4..).unwrap_or_default();
        Ok(Packet { time_ns: 0, length, link, data: data[..data.len().min(length as usize)].to_vec() })
    }
}

/// Writes pcap: ns resolution, little-endian.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    sink: W,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the head.
    pub fn new(mut sink: W) -> io::Result<Self> {
        let mut head = Vec::with_capacity(24);
        for word in [0xa1b2_3c4d, 4 << 16 | 2, 0, 0, 262_144, ETHERNET] {
            head.extend_from_slice(&u32::to_le_bytes(word));
        }
        sink.write_all(&head)?;
        Ok(Self { sink })
    }

    /// Adds a packet.
    pub fn write(&mut self, time_ns: u64, data: &[u8]) -> io::Result<()> {
        let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        for word in [seconds as u32, rest as u32, data.len() as u32, data.len() as u32] {
            self.sink.write_all(&word.to_le_bytes())?;
        }
        self.sink.write_all(data)
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

/// Writes pcapng with a comment on each packet.
#[derive(Debug)]
pub struct PcapNgWriter<W: Write> {
    sink: W,
    interfaces: Vec<u32>,
}

impl<W: Write> PcapNgWriter<W> {
    /// Writes the head; `application` is named in it.
    pub fn new(sink: W, application: &str) -> io::Result<Self> {
        let mut writer = Self { sink, interfaces: Vec::new() };
        let mut body = Vec::new();
        body.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        body.extend_from_slice(&[1, 0, 0, 0]);
        body.extend_from_slice(&u64::MAX.to_le_bytes());
        option(&mut body, 4, application.as_bytes());
        option(&mut body, 0, &[]);
        writer.block(PCAPNG, &body)?;
        Ok(writer)
    }

    /// Adds a packet that came in on `ifindex`, called `name`.
    pub fn write(
        &mut self,
        ifindex: u32,
        name: &str,
        time_ns: u64,
        length: u32,
        data: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let interface = match self.interfaces.iter().position(|i| *i == ifindex) {
            Some(position) => position,
            None => {
                let mut body = Vec::new();
                body.extend_from_slice(&ETHERNET.to_le_bytes());
                body.extend_from_slice(&0u32.to_le_bytes());
                option(&mut body, 2, name.as_bytes());
                option(&mut body, 9, &[9]);
                option(&mut body, 0, &[]);
                self.block(1, &body)?;
                self.interfaces.push(ifindex);
                self.interfaces.len() - 1
            }
        };
        let mut body = Vec::with_capacity(data.len() + comment.len() + 64);
        for word in [interface as u32, (time_ns >> 32) as u32, time_ns as u32, data.len() as u32, length] {
            body.extend_from_slice(&word.to_le_bytes());
        }
        body.extend_from_slice(data);
        body.resize(body.len().next_multiple_of(4), 0);
        option(&mut body, 1, comment.as_bytes());
        option(&mut body, 0, &[]);
        self.block(6, &body)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.sink.write_all(&kind.to_le_bytes())?;
        self.sink.write_all(&length)?;
        self.sink.write_all(body)?;
        self.sink.write_all(&length)
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

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
        writer.write(3, "eth0", 1_700_000_000_123_456_789, 3, &[1, 2, 3], "vm_unknown").unwrap();
        writer.write(4, "eth1", 5, 61, &[4; 61], "").unwrap();
        [plain, ng]
    }

    #[test]
    fn both_formats_are_read_back() {
        for bytes in samples() {
            let packets = all(&bytes).unwrap();
            assert_eq!(packets.len(), 2);
            assert_eq!(
                packets[0],
                Packet { time_ns: 1_700_000_000_123_456_789, length: 3, link: 1, data: vec![1, 2, 3] }
            );
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
}

// SPDX-License-Identifier: Apache-2.0
//! Capture files on crate `pcap-file`: reads pcap (both resolutions, both byte orders) and pcapng, writes both.
//!
//! A reader takes one record at a time, so a capture may be larger than memory; a record has 8 MB at most. Everything in a file is an
//! outside byte: a cut-off end is an error that names the packet.

use abi::IfIndex;
use pcap_file::pcap::{PcapHeader, PcapReader, RawPcapPacket};
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError as Broken, TsResolution};
use std::borrow::Cow;
use std::io::{self, Chain, Cursor, Read, Write};
use std::time::Duration;

const ETHERNET: u32 = 1;
/// Of a link type in pcap; above is how long the check sequence of a frame is.
const LINK_BITS: u32 = 0x0fff_ffff;

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
        what: String,
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

/// The first bytes of a file, which were looked at, and the rest.
type Source<R> = Chain<Cursor<[u8; 4]>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Source<R>>),
    PcapNg(PcapNgReader<Source<R>>),
}

/// Reads a capture packet by packet.
pub struct Reader<R: Read> {
    format: Format<R>,
    packets: u64,
    /// Link types that are read.
    links: &'static [u32],
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
        let source = Cursor::new(magic).chain(source);
        let no_head = |e| match e {
            Broken::IoError(e) if e.kind() != io::ErrorKind::UnexpectedEof => PcapError::Io(e),
            _ => PcapError::NotACapture,
        };
        let format = match u32::from_be_bytes(magic) {
            0x0a0d_0d0a => Format::PcapNg(PcapNgReader::new(source).map_err(no_head)?),
            _ => Format::Pcap(PcapReader::new(source).map_err(no_head)?),
        };
        if let Format::Pcap(reader) = &format {
            link(reader.header().datalink, links)?;
        }
        Ok(Self { format, packets: 0, links })
    }

    /// The next packet, `None` at the end.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, PcapError> {
        let packets = self.packets;
        let damaged = |e| match e {
            Broken::IoError(e) if e.kind() != io::ErrorKind::UnexpectedEof => PcapError::Io(e),
            Broken::IoError(_) => {
                let what = "the file ends in the middle of a record, or the record is longer than 8 MB".into();
                PcapError::Damaged { packet: packets, what }
            }
            other => PcapError::Damaged { packet: packets, what: other.to_string() },
        };
        let packet = match &mut self.format {
            Format::Pcap(reader) => {
                let head = reader.header();
                // Raw, as the lengths of many a capture contradict its head.
                reader.next_raw_packet().transpose().map_err(damaged)?.map(|packet| of_pcap(&head, packet))
            }
            Format::PcapNg(reader) => loop {
                let Some(block) = reader.next_block() else { break None };
                match block.map_err(damaged)?.into_owned() {
                    Block::EnhancedPacket(p) => break Some(enhanced(p, reader.interfaces(), self.links, packets)?),
                    Block::SimplePacket(p) => {
                        let link = interface(reader.interfaces(), 0, self.links, packets)?.0;
                        let mut data = p.data.into_owned();
                        data.truncate(p.original_len as usize);
                        break Some(Packet { time_ns: 0, length: p.original_len, link, data });
                    }
                    _ => {}
                }
            },
        };
        self.packets += u64::from(packet.is_some());
        Ok(packet)
    }
}

/// A link type, if it is one of those that are read.
fn link(datalink: DataLink, links: &'static [u32]) -> Result<u32, PcapError> {
    let link = u32::from(datalink) & LINK_BITS;
    match links {
        links if links.contains(&link) => Ok(link),
        [ETHERNET] => Err(PcapError::LinkType(link)),
        allowed => Err(PcapError::LinkTypes { link, allowed }),
    }
}

fn of_pcap(head: &PcapHeader, packet: RawPcapPacket) -> Packet {
    let unit = if head.ts_resolution == TsResolution::NanoSecond { 1 } else { 1000 };
    let time_ns = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit;
    let link = u32::from(head.datalink) & LINK_BITS;
    Packet { time_ns, length: packet.orig_len, link, data: packet.data.into_owned() }
}

/// Link type and resolution of time of an interface that a packet names.
fn interface(
    all: &[InterfaceDescriptionBlock],
    number: usize,
    links: &'static [u32],
    packet: u64,
) -> Result<(u32, u8), PcapError> {
    let Some(found) = all.get(number) else {
        return Err(PcapError::Damaged {
            packet,
            what: "a packet names an interface that was not described".to_string(),
        });
    };
    let resolution = found.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    Ok((link(found.linktype, links)?, resolution.unwrap_or(6)))
}

fn enhanced(
    packet: EnhancedPacketBlock,
    interfaces: &[InterfaceDescriptionBlock],
    links: &'static [u32],
    packets: u64,
) -> Result<Packet, PcapError> {
    let (link, resolution) = interface(interfaces, packet.interface_id as usize, links, packets)?;
    // The library takes every interface to count nanoseconds: what it gives are the units of this one, 64 bits of them.
    let units = packet.timestamp.as_nanos();
    let time_ns = if resolution & 0x80 != 0 {
        (units * 1_000_000_000 >> (resolution & 0x7f)) as u64
    } else {
        (units * 1_000_000_000 / 10u128.pow(u32::from(resolution.min(30)))) as u64
    };
    Ok(Packet { time_ns, length: packet.original_len, link, data: packet.data.into_owned() })
}

/// Writes pcap: ns resolution, little-endian.
#[derive(Debug)]
pub struct PcapWriter<W: Write> {
    inner: pcap_file::pcap::PcapWriter<W>,
}

fn to_io(error: Broken) -> io::Error {
    match error {
        Broken::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

impl<W: Write> PcapWriter<W> {
    /// Writes the head.
    pub fn new(sink: W) -> io::Result<Self> {
        let header = PcapHeader {
            snaplen: 262_144,
            ts_resolution: TsResolution::NanoSecond,
            endianness: Endianness::Little,
            ..PcapHeader::default()
        };
        Ok(Self { inner: pcap_file::pcap::PcapWriter::with_header(sink, header).map_err(to_io)? })
    }

    /// Adds a packet.
    pub fn write(&mut self, time_ns: u64, data: &[u8]) -> io::Result<()> {
        let (seconds, rest, length) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000, data.len() as u32);
        let (ts_sec, ts_frac) = (seconds as u32, rest as u32);
        let packet = RawPcapPacket { ts_sec, ts_frac, incl_len: length, orig_len: length, data: Cow::Borrowed(data) };
        self.inner.write_raw_packet(&packet).map(drop).map_err(to_io)
    }

    /// Writes out what is buffered; nothing comes behind.
    pub fn flush(self) -> io::Result<()> {
        self.inner.into_writer().flush()
    }
}

/// Writes pcapng with a comment on each packet.
pub struct PcapNgWriter<W: Write> {
    inner: pcap_file::pcapng::PcapNgWriter<W>,
    interfaces: Vec<IfIndex>,
}

impl<W: Write> PcapNgWriter<W> {
    /// Writes the head; `application` is named in it.
    pub fn new(sink: W, application: &str) -> io::Result<Self> {
        let options = vec![SectionHeaderOption::UserApplication(Cow::Owned(application.to_string()))];
        let head = SectionHeaderBlock { endianness: Endianness::Little, options, ..SectionHeaderBlock::default() };
        let inner = pcap_file::pcapng::PcapNgWriter::with_section_header(sink, head).map_err(to_io)?;
        Ok(Self { inner, interfaces: Vec::new() })
    }

    /// Adds a packet that came in on `ifindex`, called `name`.
    pub fn write(
        &mut self,
        ifindex: IfIndex,
        name: &str,
        time_ns: u64,
        length: u32,
        data: &[u8],
        comment: &str,
    ) -> io::Result<()> {
        let interface_id = match self.interfaces.iter().position(|i| *i == ifindex) {
            Some(position) => position,
            None => {
                let mut block = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
                let name = InterfaceDescriptionOption::IfName(Cow::Borrowed(name));
                block.options.extend([name, InterfaceDescriptionOption::IfTsResol(9)]);
                self.inner.write_pcapng_block(block).map_err(to_io)?;
                self.interfaces.push(ifindex);
                self.interfaces.len() - 1
            }
        };
        let block = EnhancedPacketBlock {
            interface_id: interface_id as u32,
            timestamp: Duration::from_nanos(time_ns),
            original_len: length,
            data: Cow::Borrowed(data),
            options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(comment))],
        };
        self.inner.write_pcapng_block(block).map(drop).map_err(to_io)
    }

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> io::Result<()> {
        self.inner.get_mut().flush()
    }
}

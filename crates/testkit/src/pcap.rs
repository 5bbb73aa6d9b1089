// SPDX-License-Identifier: Apache-2.0
//! Captures in and out: pcap and pcapng of Ethernet frames, for `tunny replay`, benches and failing tests.
//!
//! Reading tells the two formats apart by their first bytes. Writing is pcapng, because only that can say per frame why
//! it is there (a comment). Outside bytes: every malformed file is an error, never a panic.

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::{Block, PcapNgReader, PcapNgWriter};
use pcap_file::DataLink;
use std::borrow::Cow;
use std::io::{self, Chain, Cursor, Read, Write};
use std::time::Duration;

/// A frame in a capture.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// Nanoseconds since 1970 (or since whatever the capturing program chose).
    pub time_ns: u64,
    /// Number of the interface within the capture.
    pub interface: u32,
    /// Length on the wire; more than `bytes` when the capture was cut.
    pub wire_len: u32,
    /// The frame.
    pub bytes: Vec<u8>,
    /// What is said about it (pcapng only).
    pub comment: Option<String>,
}

/// Why a capture cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file cannot be read or written.
    #[error("the capture cannot be read or written: {0}")]
    Io(#[from] io::Error),
    /// Not a capture at all.
    #[error(
        "the file is neither pcap nor pcapng (its first bytes are {0:02x?}): capture with `tcpdump -w` or Wireshark"
    )]
    NotACapture([u8; 4]),
    /// Another link layer.
    #[error("the capture holds {0:?} frames: capture on an Ethernet interface")]
    NotEthernet(DataLink),
    /// Malformed inside.
    #[error("the capture is malformed behind frame {frames}: {what}")]
    Malformed {
        /// Frames read so far.
        frames: u64,
        /// What the parser says.
        what: String,
    },
}

type Source<R> = Chain<Cursor<[u8; 4]>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Source<R>>),
    PcapNg(PcapNgReader<Source<R>>),
}

/// Reads the frames of a capture one by one.
pub struct Reader<R: Read> {
    format: Format<R>,
    frames: u64,
    failed: bool,
}

impl<R: Read> Reader<R> {
    /// Begins to read a capture of either format.
    pub fn new(mut source: R) -> Result<Reader<R>, PcapError> {
        let mut magic = [0; 4];
        source.read_exact(&mut magic)?;
        let source = Cursor::new(magic).chain(source);
        let malformed = |e: pcap_file::PcapError| PcapError::Malformed { frames: 0, what: e.to_string() };
        let format = match u32::from_be_bytes(magic) {
            0x0a0d_0d0a => Format::PcapNg(PcapNgReader::new(source).map_err(malformed)?),
            0xa1b2_c3d4 | 0xd4c3_b2a1 | 0xa1b2_3c4d | 0x4d3c_b2a1 => {
                let reader = PcapReader::new(source).map_err(malformed)?;
                ethernet(reader.header().datalink)?;
                Format::Pcap(reader)
            }
            _ => return Err(PcapError::NotACapture(magic)),
        };
        Ok(Reader { format, frames: 0, failed: false })
    }

    fn read(&mut self) -> Option<Result<Frame, PcapError>> {
        let frames = self.frames;
        let malformed = |e: pcap_file::PcapError| PcapError::Malformed { frames, what: e.to_string() };
        match &mut self.format {
            Format::Pcap(reader) => {
                let packet = match reader.next_packet()? {
                    Ok(p) => p,
                    Err(e) => return Some(Err(malformed(e))),
                };
                Some(Ok(Frame {
                    time_ns: packet.timestamp.as_nanos() as u64,
                    interface: 0,
                    wire_len: packet.orig_len,
                    bytes: packet.data.into_owned(),
                    comment: None,
                }))
            }
            Format::PcapNg(reader) => loop {
                let block = match reader.next_block()? {
                    Ok(b) => b.into_owned(),
                    Err(e) => return Some(Err(malformed(e))),
                };
                match block {
                    Block::EnhancedPacket(p) => return Some(enhanced(p, reader.interfaces())),
                    Block::SimplePacket(p) => {
                        let bytes = p.data.into_owned();
                        return Some(Ok(Frame { wire_len: p.original_len, bytes, ..Frame::default() }));
                    }
                    _ => {}
                }
            },
        }
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Frame, PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.read();
        self.failed = matches!(item, Some(Err(_)));
        self.frames += 1;
        item
    }
}

fn ethernet(link: DataLink) -> Result<(), PcapError> {
    match link {
        DataLink::ETHERNET => Ok(()),
        other => Err(PcapError::NotEthernet(other)),
    }
}

/// The library hands timestamps over as if every interface counted nanoseconds: scale them by what it really counts.
fn enhanced(p: EnhancedPacketBlock<'_>, interfaces: &[InterfaceDescriptionBlock<'_>]) -> Result<Frame, PcapError> {
    let interface = interfaces.get(p.interface_id as usize);
    if let Some(i) = interface {
        ethernet(i.linktype)?;
    }
    let resolution = interface
        .and_then(|i| {
            i.options.iter().find_map(|o| match o {
                InterfaceDescriptionOption::IfTsResol(r) => Some(*r),
                _ => None,
            })
        })
        .unwrap_or(6);
    let units = p.timestamp.as_nanos();
    let exponent = u32::from(resolution & 0x7f);
    let nanos = if resolution & 0x80 != 0 {
        units.checked_mul(1_000_000_000).map(|n| n.checked_shr(exponent).unwrap_or(0))
    } else if exponent <= 9 {
        units.checked_mul(10u128.pow(9 - exponent))
    } else {
        10u128.checked_pow(exponent - 9).map(|d| units / d)
    };
    let comment = p.options.iter().find_map(|o| match o {
        EnhancedPacketOption::Comment(c) => Some(c.to_string()),
        _ => None,
    });
    Ok(Frame {
        time_ns: nanos.map_or(u64::MAX, |n| n.min(u128::from(u64::MAX)) as u64),
        interface: p.interface_id,
        wire_len: p.original_len,
        bytes: p.data.into_owned(),
        comment,
    })
}

/// Writes a pcapng capture.
pub struct Writer<W: Write> {
    inner: PcapNgWriter<W>,
}

impl<W: Write> Writer<W> {
    /// Begins a capture with these interfaces (names as shown by Wireshark).
    pub fn new(sink: W, interfaces: &[&str]) -> Result<Writer<W>, PcapError> {
        let mut inner = PcapNgWriter::new(sink).map_err(write_error)?;
        for name in interfaces {
            let mut block = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            block.options.push(InterfaceDescriptionOption::IfName(Cow::Borrowed(name)));
            block.options.push(InterfaceDescriptionOption::IfTsResol(9));
            inner.write_pcapng_block(block).map_err(write_error)?;
        }
        Ok(Writer { inner })
    }

    /// Appends a frame.
    pub fn write(&mut self, frame: &Frame) -> Result<(), PcapError> {
        let comment = frame.comment.as_deref().map(|c| EnhancedPacketOption::Comment(Cow::Borrowed(c)));
        let block = EnhancedPacketBlock {
            interface_id: frame.interface,
            timestamp: Duration::from_nanos(frame.time_ns),
            original_len: frame.wire_len.max(frame.bytes.len() as u32),
            data: Cow::Borrowed(&frame.bytes),
            options: comment.into_iter().collect(),
        };
        self.inner.write_pcapng_block(block).map_err(write_error)?;
        Ok(())
    }

    /// Ends the capture and gives the sink back.
    pub fn finish(mut self) -> Result<W, PcapError> {
        self.inner.get_mut().flush()?;
        Ok(self.inner.into_inner())
    }
}

fn write_error(e: pcap_file::PcapError) -> PcapError {
    match e {
        pcap_file::PcapError::IoError(e) => PcapError::Io(e),
        other => PcapError::Io(io::Error::other(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let frames = [
            Frame {
                time_ns: 1_700_000_000_123_456_789,
                interface: 0,
                wire_len: 4,
                bytes: vec![1, 2, 3, 4],
                comment: None,
            },
            Frame {
                time_ns: 5,
                interface: 1,
                wire_len: 9,
                bytes: vec![7; 3],
                comment: Some("dropped: route_none".into()),
            },
        ];
        let mut w = Writer::new(Vec::new(), &["up0", "up1"]).unwrap();
        for f in &frames {
            w.write(f).unwrap();
        }
        let bytes = w.finish().unwrap();
        let read: Vec<Frame> = Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect();
        assert_eq!(read, frames);
    }

    #[test]
    fn any_cut_or_changed_byte_is_an_error_or_a_frame_but_no_panic() {
        let mut w = Writer::new(Vec::new(), &["up0"]).unwrap();
        w.write(&Frame { bytes: vec![7; 60], wire_len: 60, ..Frame::default() }).unwrap();
        let bytes = w.finish().unwrap();
        for cut in 0..bytes.len() {
            if let Ok(reader) = Reader::new(&bytes[..cut]) {
                reader.take(10).for_each(drop);
            }
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[cut] = value;
                if let Ok(reader) = Reader::new(&changed[..]) {
                    reader.take(10).for_each(drop);
                }
            }
        }
        assert!(matches!(Reader::new(&b"hello"[..]), Err(PcapError::NotACapture(_))));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! What the tc program punts, taken in by a TAP, and the way back to the host.
//!
//! On its way into the TAP the kernel cuts a frame that stands for many packets apart, fills in checksums, and puts the VLAN tag into the frame
//! by which the program says where it came in: what is read here is as it would be on a wire. A frame that is the host's goes back by the TAP
//! to the interface that it came by, past the program (`bpf/switch.bpf.c`).

use crate::afpacket::{BURST, HEADROOM};
use crate::routing::tap::device;
use crate::uplinks::{control_socket, ioctl, request, set_flag};
use abi::{IfIndex, PuntMeta, PUNT_MAGIC, PUNT_TAG_REASON_SHIFT};
use gateway::{Batch, Frame};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use wire::be;

/// The name; the kernel puts a number in.
const NAME: &str = "tnypunt%d";
/// Frames that may wait in it.
const QUEUE: i32 = 4096;
const REGION: usize = HEADROOM + abi::FRAME_BYTES_MAX as usize + 128;
const MACS: usize = 12;
const TAG: usize = 4;
/// Where `/proc/net/dev` has the packets that a device did not take, behind its name.
const TX_DROPPED: usize = 11;

/// The TAP.
pub struct PuntTap {
    file: File,
    name: String,
    ifindex: IfIndex,
    /// Ports by their slots.
    ports: HashMap<u32, IfIndex>,
    regions: Vec<u8>,
    lost: u64,
    /// Packets that were read and cannot be served.
    refused: u64,
}

impl PuntTap {
    /// Makes it in the network namespace of the calling thread. It goes when it is dropped.
    pub fn open() -> io::Result<PuntTap> {
        let (file, name) = device(NAME)?;
        let ifindex = IfIndex(nix::net::if_::if_nametoindex(name.as_str())?);
        // Nothing of the host's own leaves by it.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1");
        let socket = control_socket()?;
        let mut length = request(&name);
        length.ifr_ifru.ifru_metric = QUEUE;
        ioctl(&socket, libc::SIOCSIFTXQLEN as _, &mut length)?;
        set_flag(&socket, &name, libc::IFF_UP)?;
        Ok(PuntTap {
            file,
            name,
            ifindex,
            ports: HashMap::new(),
            regions: vec![0; REGION * BURST],
            lost: 0,
            refused: 0,
        })
    }

    /// Its interface.
    pub fn ifindex(&self) -> IfIndex {
        self.ifindex
    }

    /// Which ports frames may have come by, with their slots.
    pub fn set_ports(&mut self, slots: impl IntoIterator<Item = (u32, IfIndex)>) {
        self.ports = slots.into_iter().collect();
    }

    /// The descriptor, for `poll`.
    pub fn raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Takes what has come in into a batch, without waiting. Returns the number of packets.
    pub fn receive<'a>(&'a mut self, batch: &mut Batch<'a>) -> io::Result<usize> {
        let mut received = 0;
        for region in self.regions.chunks_exact_mut(REGION) {
            let read = match (&self.file).read(&mut region[HEADROOM..]) {
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // Longer than what a worker takes.
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                    self.refused += 1;
                    continue;
                }
                // Those before are to be served.
                Err(_) if received > 0 => break,
                Err(e) => return Err(e),
            };
            if !is_tagged(region, read) {
                continue;
            }
            // A port that has come or gone a moment ago.
            let Some((start, ifindex, reason)) = untag(region, read, &self.ports) else {
                self.refused += 1;
                continue;
            };
            let meta = PuntMeta {
                magic: PUNT_MAGIC,
                reason,
                flags: 0,
                inner_offset: 0,
                vni: 0,
                ifindex: ifindex.0,
                time: 0,
                tenant: 0,
                share: 0,
            };
            // A burst is shorter than a batch.
            let _ = batch.push(Frame::punted(region, start, read - TAG, &meta));
            received += 1;
        }
        Ok(received)
    }

    /// The way back of frames that are the host's.
    pub fn way_back(&self) -> io::Result<WayBack> {
        self.file.try_clone().map(WayBack)
    }

    /// Packets that found no room since the last call.
    pub fn take_lost(&mut self) -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let now = dropped(&text, &self.name).unwrap_or(self.lost);
        now - std::mem::replace(&mut self.lost, now).min(now) + std::mem::take(&mut self.refused)
    }
}

/// By which frames go back to the host.
pub struct WayBack(File);

impl WayBack {
    /// Leaves a frame that came by `ifindex` to the host.
    pub fn give_back(&self, frame: &[u8], ifindex: IfIndex) -> io::Result<()> {
        let mut header = [0; MACS + 2];
        header[..4].copy_from_slice(&ifindex.0.to_be_bytes());
        header[MACS..].copy_from_slice(&wire::ethernet::ethertype::IPV4.to_be_bytes());
        (&self.0).write_vectored(&[IoSlice::new(&header), IoSlice::new(frame)]).map(drop)
    }
}

/// Whether the frame of `bytes` bytes behind the headroom is the program's: the host's own have no tag.
fn is_tagged(region: &[u8], bytes: usize) -> bool {
    let kind = region[HEADROOM..].get(..bytes).and_then(|frame| frame.get(MACS..MACS + TAG));
    kind.is_some_and(|tag| be::u16(tag, 0) == wire::ethernet::ethertype::VLAN)
}

/// Takes the tag off the frame of `bytes` bytes behind the headroom: where it begins now, the port that it came by, the reason. None: the program knows
/// another port.
fn untag(region: &mut [u8], bytes: usize, ports: &HashMap<u32, IfIndex>) -> Option<(usize, IfIndex, u8)> {
    let frame = region.get(HEADROOM..HEADROOM + bytes)?;
    let tag = u32::from(be::u16(frame.get(MACS + 2..MACS + TAG)?, 0));
    let ifindex = *ports.get(&(tag & ((1 << PUNT_TAG_REASON_SHIFT) - 1)))?;
    let start = HEADROOM + TAG;
    region.copy_within(HEADROOM..HEADROOM + MACS, start);
    Some((start, ifindex, (tag >> PUNT_TAG_REASON_SHIFT) as u8))
}

/// Packets that a device has not taken, in the words of `/proc/net/dev`.
fn dropped(text: &str, name: &str) -> Option<u64> {
    let numbers = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    numbers.split_whitespace().nth(TX_DROPPED)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_says_where_a_frame_came_in_and_why() {
        let ports = HashMap::from([(17, IfIndex(5))]);
        let mut region = vec![0; REGION];
        let mut frame: Vec<u8> = (0..12).collect();
        frame.extend([0x81, 0, (3 << 1) as u8, 17, 8, 0, 9]);
        region[HEADROOM..HEADROOM + frame.len()].copy_from_slice(&frame);
        let (start, ifindex, reason) = untag(&mut region, frame.len(), &ports).unwrap();
        assert_eq!((ifindex, reason), (IfIndex(5), 3));
        let plain: Vec<u8> = (0..12).chain([8, 0, 9]).collect();
        assert_eq!(region[start..start + frame.len() - TAG], plain);
        // Of another port, without a tag, or too short.
        for (other, is) in [(&[0x81, 0, 0, 18][..], true), (&[8, 0, 0, 17], false), (&[0x81, 0], false)] {
            region[HEADROOM + MACS..HEADROOM + MACS + other.len()].copy_from_slice(other);
            assert_eq!(is_tagged(&region, MACS + other.len()), is);
            assert!(!is || untag(&mut region, MACS + other.len(), &ports).is_none());
        }
    }

    #[test]
    fn what_a_device_did_not_take_is_read_by_its_name() {
        let text = "Inter-|   Receive\n face |bytes\n  tnypunt1: 1 2 3 4 5 6 7 8 9 10 11 12 13\ntnypunt10: 1 2 3 4 5 6 7 8 9 10 11 99 13\n";
        assert_eq!(
            (dropped(text, "tnypunt1"), dropped(text, "tnypunt10"), dropped(text, "eth0")),
            (Some(12), Some(99), None)
        );
    }
}

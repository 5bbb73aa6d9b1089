// SPDX-License-Identifier: Apache-2.0
//! Frames with chains of IPv6 extension headers, made of the input byte by byte, so that mutations of it are other chains and not broken ones.

use super::frames::Frames;
use super::Target;

/// Every chain goes the way of target `frames`: with and without the short cut, with every packet accounted for. Where the walk finds an upper layer, so does a
/// receiver that is written here by itself.
pub struct Chains {
    frames: Frames,
}

impl Chains {
    /// Loads the regions.
    pub fn new() -> Chains {
        Chains { frames: Frames::new() }
    }
}

/// Headers that a chain may have: hop-by-hop, routing, fragment, ESP, authentication, destination options, mobility, HIP, shim6, experiments, none, and
/// what comes last.
const HEADERS: [u8; 20] = [0, 43, 44, 50, 51, 60, 135, 139, 140, 253, 254, 59, 6, 17, 58, 132, 136, 4, 41, 255];

/// An inner packet: what the first bytes say of the chain, then the bytes behind it. A step is a header, its length and what it says.
fn chain(steps: &[u8], payload: &[u8]) -> (u8, Vec<u8>) {
    let headers: Vec<&[u8]> = steps.chunks(3).take(24).collect();
    let kind = |n: usize| headers.get(n).map_or(17, |h| HEADERS[usize::from(h[0]) % HEADERS.len()]);
    let mut out = Vec::new();
    for (n, step) in headers.iter().enumerate() {
        let (length, says) = (step.get(1).copied().unwrap_or(0), step.get(2).copied().unwrap_or(0));
        match kind(n) {
            44 => {
                // Offset and whether more follow; most are the first or the only one.
                let offset = if length & 0xf0 == 0xf0 { u16::from(says) << 3 } else { 0 };
                out.extend([kind(n + 1), 0]);
                out.extend((offset | u16::from(length & 1)).to_be_bytes());
                out.extend([0, 0, 0, says & 3]);
            }
            51 => {
                out.extend([kind(n + 1), 1 + length % 4]);
                out.extend(vec![says; 4 * (3 + usize::from(length % 4)) - 2]);
            }
            6 | 17 | 58 | 132 | 136 | 59 | 4 | 41 | 50 | 255 => break,
            _ => {
                out.extend([kind(n + 1), length % 8]);
                let room = 8 * (1 + usize::from(length % 8)) - 2;
                // Padding, or an option that says what to do where it is not known.
                let option = [says, (room - 2) as u8];
                let body = if says & 1 == 0 { [1, (room - 2) as u8] } else { option };
                out.extend(body);
                out.extend(vec![0; room - 2]);
            }
        }
    }
    out.extend(payload);
    (kind(0), out)
}

/// The upper layer that a receiver hands a packet to, and where that begins; of a fragment beyond the first what its header says. It knows no limit and no policy.
fn receiver(mut kind: u8, payload: &[u8]) -> Option<(u8, usize)> {
    let mut at = 0usize;
    loop {
        let rest = payload.get(at..)?;
        let words = |n: usize| rest.get(1).map(|l| (usize::from(*l) + n / 8) * 8);
        let length = match kind {
            0 | 43 | 60 => words(8)?,
            44 => 8,
            51 => (usize::from(*rest.get(1)?) + 2) * 4,
            _ => return Some((kind, at)),
        };
        let next = *rest.get(..length)?.first()?;
        let later = kind == 44 && (rest[2] != 0 || rest[3] & 0xf8 != 0);
        (kind, at) = (next, at + length);
        if later {
            return Some((kind, at));
        }
    }
}

/// The walk of crate `wire` beside the receiver.
fn walked(kind: u8, payload: &[u8]) -> u64 {
    match wire::ipv6::walk(kind, payload) {
        Ok(chain) => {
            let upper = chain.upper;
            assert!(upper.offset <= payload.len() && usize::from(chain.headers) <= wire::ipv6::CHAIN_MAX);
            assert_eq!(receiver(kind, payload), Some((upper.protocol, upper.offset)), "{kind} {payload:02x?}");
            u64::from(upper.protocol) * 32 + u64::from(chain.headers)
        }
        Err(fault) => 0x10000 + fault as u64,
    }
}

impl Target for Chains {
    fn name(&self) -> &'static str {
        "chains"
    }

    /// Eight bytes as for `frames`, the number of steps, the steps, and the frame whose inner IPv6 packet gets them.
    fn run(&mut self, input: &[u8]) -> u64 {
        if let Some((kind, payload)) = input.split_first() {
            walked(HEADERS[usize::from(*kind) % HEADERS.len()], payload);
        }
        let Some((head, rest)) = input.split_first_chunk::<8>() else { return 0 };
        let Some((count, rest)) = rest.split_first() else { return 0 };
        let (steps, frame) = rest.split_at((usize::from(*count % 25) * 3).min(rest.len()));
        let Some(at) = inner(frame) else { return 1 };
        let (first, payload) = chain(steps, &frame[at + 40..]);
        let mut made = [head.as_slice(), frame].concat();
        made.truncate(8 + at + 40);
        made[8 + at + 6] = first;
        made[8 + at + 4..8 + at + 6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        made.extend(&payload);
        lengths(&mut made[8..], at);
        walked(first, &payload).wrapping_mul(31) ^ self.frames.run(&made)
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let steps: [&[u8]; 8] = [
            &[13, 0, 0],
            &[5, 0, 0, 13, 0, 0],
            &[2, 0, 0, 5, 0, 0, 13, 0, 0],
            &[2, 1, 0, 5, 0, 0, 13, 0, 0],
            &[0, 0, 0, 1, 0, 0, 5, 1, 0, 4, 0, 0, 12, 0, 0],
            &[5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 5, 0, 0, 13, 0, 0],
            &[3, 0, 0],
            &[6, 0, 1, 7, 0, 3, 9, 0, 5, 14, 0, 0],
        ];
        let mut out = Vec::new();
        for frame in self.frames.seeds().iter().filter(|f| inner(&f[8..]).is_some()).take(40) {
            let of = &steps[out.len() % steps.len()];
            out.push([&frame[..8], &[(of.len() / 3) as u8], *of, &frame[8..]].concat());
        }
        out
    }
}

/// Where the innermost IPv6 header of a frame is: behind VXLAN, or the frame's own.
fn inner(frame: &[u8]) -> Option<usize> {
    let ipv6 = |at: usize| {
        frame.get(at..at + 40).is_some_and(|h| h[0] >> 4 == 6) && frame.get(at - 2..at) == Some(&[0x86, 0xdd])
    };
    let tunnels = [14 + 20 + 8 + 8 + 14, 14 + 40 + 8 + 8 + 14];
    tunnels.into_iter().chain([14]).find(|at| ipv6(*at))
}

/// Mends the lengths of what carries the inner packet; sums over what is carried are left out where that may be.
fn lengths(frame: &mut [u8], at: usize) {
    let whole = frame.len();
    match at {
        64 => {
            frame[16..18].copy_from_slice(&((whole - 14) as u16).to_be_bytes());
            frame[24..26].copy_from_slice(&[0, 0]);
            let sum = frame[14..34].chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum::<u32>();
            let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            frame[38..40].copy_from_slice(&((whole - 34) as u16).to_be_bytes());
            frame[40..42].copy_from_slice(&[0, 0]);
        }
        84 => {
            frame[18..20].copy_from_slice(&((whole - 54) as u16).to_be_bytes());
            frame[58..60].copy_from_slice(&((whole - 54) as u16).to_be_bytes());
            frame[60..62].copy_from_slice(&[0, 0]);
        }
        _ => {}
    }
}

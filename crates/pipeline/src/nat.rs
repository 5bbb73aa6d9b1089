// SPDX-License-Identifier: Apache-2.0
//! Choosing the translation of a new connection: the host's own port if it is free, else the next free one of the range, else the
//! next address.
use crate::conntrack::{Nat, NatKind, Tuple};

/// At most so many candidates are looked at for one connection.
const TRIES: u32 = 1 << 17;

/// The reverse direction of the translated connection, or `None` if every candidate is taken.
pub(crate) fn choose(nat: &Nat, forward: &Tuple, taken: impl Fn(&Tuple) -> bool) -> Option<Tuple> {
    let source = nat.kind == Some(NatKind::Source);
    let (own_address, own_port) = if source { (forward.src, forward.sport) } else { (forward.dst, forward.dport) };
    let (first, last) = nat.addresses.unwrap_or((own_address, own_address));
    let count = last.saturating_sub(first).saturating_add(1);
    let start = match count {
        1 => 0,
        n => u128::from(host_hash(forward)) % n,
    };
    let ports = matches!(forward.proto, 6 | 17 | 132);
    let (low, high) = match (ports, nat.ports, source) {
        (false, ..) => (0, 0),
        (true, Some(range), _) => range,
        // A source port below 1024 stays below 1024 when it must change, as in other implementations of this.
        (true, None, true) => (1024, u16::MAX),
        (true, None, false) => (own_port, own_port),
    };
    let mut tries = 0;
    for step in 0..count {
        let address = first + (start + step) % count;
        let wanted = match nat.ports {
            Some(_) if own_port < low || own_port > high => {
                low + (host_hash(forward) % (u32::from(high - low) + 1)) as u16
            }
            _ => own_port,
        };
        let range = u32::from(high.saturating_sub(low)) + 1;
        for offset in 0..=range {
            tries += 1;
            if tries > TRIES {
                return None;
            }
            let port = match (ports, offset) {
                // Of an echo it is the identifier, which stays.
                (false, _) => own_port,
                (true, 0) => wanted,
                (true, n) => low + ((u32::from(wanted.wrapping_sub(low)) + n) % range) as u16,
            };
            let mut reverse = forward.reversed();
            if source {
                (reverse.dst, reverse.dport) = (address, port);
            } else {
                (reverse.src, reverse.sport) = (address, port);
            }
            if !taken(&reverse) {
                return Some(reverse);
            }
            if !ports {
                break;
            }
        }
    }
    None
}

/// Spreads hosts over addresses; the same host always gets the same one.
fn host_hash(forward: &Tuple) -> u32 {
    let mut hash = 0x9e37_79b9u32;
    for part in [forward.src as u32, (forward.src >> 32) as u32, (forward.src >> 64) as u32, (forward.src >> 96) as u32]
    {
        hash = (hash ^ part).wrapping_mul(0x85eb_ca6b).rotate_left(13);
    }
    hash ^ hash >> 16
}

// SPDX-License-Identifier: Apache-2.0
//! Special-purpose addresses (RFC 6890 with the updates of RFC 8190): which of them a packet may carry when it is forwarded.
//!
//! [`SPECIAL`] is the one table: the two IANA registries row by row, with what Tunny does about each. The C functions in
//! `bpf/include/abi.h` and `docs/reference/special-addresses.md` are printed from it; [`special4`] and [`special6`], which packets
//! ask, are held to it by a test. A longer row decides before a shorter one.
//!
//! What counts is *Source* for a source address and *Destination* and *Forwardable* for a destination. *Globally reachable* does not
//! decide: the routes of a VPC and of the underlay do.

use crate::DropReason;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where a VM of a node asks about itself: 169.254.169.254, as in other clouds.
pub const METADATA_ADDRESS: u32 = 0xa9fe_a9fe;

/// What becomes of a packet with such an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// It goes on.
    Go,
    /// `inner_martian`.
    Never,
    /// `inner_link_local`.
    Link,
    /// `inner_documentation`, if the Gateway drops such packets.
    Docs,
}

impl Say {
    /// The drop reason.
    pub const fn reason(self) -> Option<DropReason> {
        match self {
            Say::Go => None,
            Say::Never => Some(DropReason::InnerMartian),
            Say::Link => Some(DropReason::InnerLinkLocal),
            Say::Docs => Some(DropReason::InnerDocumentation),
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Say::Go => "forwarded",
            Say::Never => "`inner_martian`",
            Say::Link => "`inner_link_local`",
            Say::Docs => "by option `inner_documentation`",
        }
    }
}

/// A row of the registries.
#[derive(Clone, Copy, Debug)]
pub struct Special {
    /// First address; IPv4 in the lower 32 bits.
    pub addr: u128,
    /// Bits of the prefix.
    pub len: u8,
    /// Family.
    pub v6: bool,
    /// Name in the registry.
    pub name: &'static str,
    /// Its document.
    pub rfc: &'static str,
    /// Source, Destination, Forwardable, Globally Reachable: `T`, `F`, or `-` where the registry says nothing.
    pub columns: &'static str,
    /// As the source of a packet.
    pub source: Say,
    /// As its destination.
    pub destination: Say,
}

const fn v4(
    addr: [u8; 4],
    len: u8,
    name: &'static str,
    rfc: &'static str,
    columns: &'static str,
    say: (Say, Say),
) -> Special {
    Special {
        addr: u32::from_be_bytes(addr) as u128,
        len,
        v6: false,
        name,
        rfc,
        columns,
        source: say.0,
        destination: say.1,
    }
}

const fn v6(
    addr: [u16; 8],
    len: u8,
    name: &'static str,
    rfc: &'static str,
    columns: &'static str,
    say: (Say, Say),
) -> Special {
    let (mut bits, mut i) = (0u128, 0);
    while i < 8 {
        bits = bits << 16 | addr[i] as u128;
        i += 1;
    }
    Special { addr: bits, len, v6: true, name, rfc, columns, source: say.0, destination: say.1 }
}

const GO: (Say, Say) = (Say::Go, Say::Go);
const NEVER: (Say, Say) = (Say::Never, Say::Never);
const LINK: (Say, Say) = (Say::Link, Say::Link);
const DOCS: (Say, Say) = (Say::Docs, Say::Docs);
/// Whoever has no other address may send with it; nobody has it.
const DUMMY: (Say, Say) = (Say::Go, Say::Never);

/// The IANA IPv4 and IPv6 Special-Purpose Address Registries, in their order. A deprecated row whose columns say nothing any more has
/// what the next shorter row says, and is forwarded if there is none.
pub const SPECIAL: &[Special] = &[
    v4([0, 0, 0, 0], 8, "\"This network\"", "RFC 791", "TFFF", NEVER),
    v4([0, 0, 0, 0], 32, "\"This host on this network\"", "RFC 1122", "TFFF", NEVER),
    v4([10, 0, 0, 0], 8, "Private-Use", "RFC 1918", "TTTF", GO),
    v4([100, 64, 0, 0], 10, "Shared Address Space", "RFC 6598", "TTTF", GO),
    v4([127, 0, 0, 0], 8, "Loopback", "RFC 1122", "FFFF", NEVER),
    v4([169, 254, 0, 0], 16, "Link Local", "RFC 3927", "TTFF", LINK),
    v4([172, 16, 0, 0], 12, "Private-Use", "RFC 1918", "TTTF", GO),
    v4([192, 0, 0, 0], 24, "IETF Protocol Assignments", "RFC 6890", "FFFF", NEVER),
    v4([192, 0, 0, 0], 29, "IPv4 Service Continuity Prefix", "RFC 7335", "TTTF", GO),
    v4([192, 0, 0, 8], 32, "IPv4 dummy address", "RFC 7600", "TFFF", DUMMY),
    v4([192, 0, 0, 9], 32, "Port Control Protocol Anycast", "RFC 7723", "TTTT", GO),
    v4([192, 0, 0, 10], 32, "Traversal Using Relays around NAT Anycast", "RFC 8155", "TTTT", GO),
    v4([192, 0, 0, 170], 32, "NAT64/DNS64 Discovery", "RFC 8880", "FFFF", NEVER),
    v4([192, 0, 0, 171], 32, "NAT64/DNS64 Discovery", "RFC 8880", "FFFF", NEVER),
    v4([192, 0, 2, 0], 24, "Documentation (TEST-NET-1)", "RFC 5737", "FFFF", DOCS),
    v4([192, 31, 196, 0], 24, "AS112-v4", "RFC 7535", "TTTT", GO),
    v4([192, 52, 193, 0], 24, "AMT", "RFC 7450", "TTTT", GO),
    v4([192, 88, 99, 0], 24, "Deprecated (6to4 Relay Anycast)", "RFC 7526", "----", GO),
    v4([192, 88, 99, 2], 32, "6a44-relay anycast address", "RFC 6751", "TTTF", GO),
    v4([192, 168, 0, 0], 16, "Private-Use", "RFC 1918", "TTTF", GO),
    v4([192, 175, 48, 0], 24, "Direct Delegation AS112 Service", "RFC 7534", "TTTT", GO),
    v4([198, 18, 0, 0], 15, "Benchmarking", "RFC 2544", "TTTF", GO),
    v4([198, 51, 100, 0], 24, "Documentation (TEST-NET-2)", "RFC 5737", "FFFF", DOCS),
    v4([203, 0, 113, 0], 24, "Documentation (TEST-NET-3)", "RFC 5737", "FFFF", DOCS),
    v4([240, 0, 0, 0], 4, "Reserved", "RFC 1112", "FFFF", NEVER),
    v4([255, 255, 255, 255], 32, "Limited Broadcast", "RFC 919", "FTFF", NEVER),
    v6([0, 0, 0, 0, 0, 0, 0, 1], 128, "Loopback Address", "RFC 4291", "FFFF", NEVER),
    v6([0; 8], 128, "Unspecified Address", "RFC 4291", "TFFF", NEVER),
    v6([0, 0, 0, 0, 0, 0xffff, 0, 0], 96, "IPv4-mapped Address", "RFC 4291", "FFFF", NEVER),
    v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96, "IPv4-IPv6 Translat.", "RFC 6052", "TTTT", GO),
    v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, "IPv4-IPv6 Translat.", "RFC 8215", "TTTF", GO),
    v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64, "Discard-Only Address Block", "RFC 6666", "TTTF", GO),
    v6([0x100, 0, 0, 1, 0, 0, 0, 0], 64, "Dummy IPv6 Prefix", "RFC 9780", "TFFF", DUMMY),
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, "IETF Protocol Assignments", "RFC 2928", "FFFF", NEVER),
    v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, "TEREDO", "RFC 4380", "TTT-", GO),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 1], 128, "Port Control Protocol Anycast", "RFC 7723", "TTTT", GO),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 2], 128, "Traversal Using Relays around NAT Anycast", "RFC 8155", "TTTT", GO),
    v6([0x2001, 1, 0, 0, 0, 0, 0, 3], 128, "DNS-SD Service Registration Protocol Anycast", "RFC 9665", "TTTT", GO),
    v6([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, "Benchmarking", "RFC 5180", "TTTF", GO),
    v6([0x2001, 3, 0, 0, 0, 0, 0, 0], 32, "AMT", "RFC 7450", "TTTT", GO),
    v6([0x2001, 4, 0x112, 0, 0, 0, 0, 0], 48, "AS112-v6", "RFC 7535", "TTTT", GO),
    v6([0x2001, 0x10, 0, 0, 0, 0, 0, 0], 28, "Deprecated (previously ORCHID)", "RFC 4843", "----", NEVER),
    v6([0x2001, 0x20, 0, 0, 0, 0, 0, 0], 28, "ORCHIDv2", "RFC 7343", "TTTT", GO),
    v6([0x2001, 0x30, 0, 0, 0, 0, 0, 0], 28, "Drone Remote ID Protocol Entity Tags", "RFC 9374", "TTTT", GO),
    v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, "Documentation", "RFC 3849", "FFFF", DOCS),
    v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, "6to4", "RFC 3056", "TTT-", GO),
    v6([0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0], 48, "Direct Delegation AS112 Service", "RFC 7534", "TTTT", GO),
    v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, "Documentation", "RFC 9637", "FFFF", DOCS),
    v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16, "Segment Routing (SRv6) SIDs", "RFC 9602", "TTTF", GO),
    v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, "Unique-Local", "RFC 4193", "TTTF", GO),
    v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, "Link-Local Unicast", "RFC 4291", "TTFF", LINK),
];

impl Special {
    const fn bits(&self) -> u8 {
        if self.v6 {
            128
        } else {
            32
        }
    }

    const fn say(&self, source: bool) -> Say {
        if source {
            self.source
        } else {
            self.destination
        }
    }

    /// The row holds the address.
    pub const fn covers(&self, addr: u128) -> bool {
        (addr ^ self.addr) >> (self.bits() - self.len) == 0
    }

    /// The prefix as text.
    pub fn prefix(&self) -> String {
        let addr: IpAddr = match self.v6 {
            true => Ipv6Addr::from_bits(self.addr).into(),
            false => Ipv4Addr::from_bits(self.addr as u32).into(),
        };
        format!("{addr}/{}", self.len)
    }
}

/// The longest row that holds an address.
pub fn special(addr: IpAddr) -> Option<&'static Special> {
    let (v6, bits) = match addr {
        IpAddr::V4(a) => (false, a.to_bits().into()),
        IpAddr::V6(a) => (true, a.to_bits()),
    };
    let mut longest: Option<&Special> = None;
    for row in SPECIAL {
        if row.v6 == v6 && row.covers(bits) && longest.is_none_or(|l| l.len <= row.len) {
            longest = Some(row);
        }
    }
    longest
}

#[cold]
fn look_up(addr: IpAddr, source: bool) -> Option<DropReason> {
    special(addr)?.say(source).reason()
}

/// Why an IPv4 packet with this source or destination is not forwarded, if so. Multicast is no part of it.
#[inline(always)]
pub fn special4(a: u32, source: bool) -> Option<DropReason> {
    match a >> 24 {
        0 | 127 | 240.. => Some(DropReason::InnerMartian),
        169 if a >> 16 == 0xa9fe => Some(DropReason::InnerLinkLocal),
        192 if a >> 16 == 0xc000 => look_up(Ipv4Addr::from_bits(a).into(), source),
        198 if a >> 8 == 0xc63364 => Some(DropReason::InnerDocumentation),
        203 if a >> 8 == 0xcb0071 => Some(DropReason::InnerDocumentation),
        _ => None,
    }
}

/// The same for IPv6.
#[inline(always)]
pub fn special6(hi: u64, lo: u64, source: bool) -> Option<DropReason> {
    match hi >> 48 {
        0 if hi == 0 && (lo <= 1 || lo >> 32 == 0xffff) => Some(DropReason::InnerMartian),
        0x0100 if hi == 0x0100_0000_0000_0001 && !source => Some(DropReason::InnerMartian),
        0x2001 if hi >> 32 == 0x2001_0db8 => Some(DropReason::InnerDocumentation),
        0x2001 if hi >> 41 == 0x2001_0000 >> 9 => {
            look_up(Ipv6Addr::from_bits((hi as u128) << 64 | lo as u128).into(), source)
        }
        0x3fff if hi >> 44 == 0x3fff0 => Some(DropReason::InnerDocumentation),
        0xfe80..=0xfebf => Some(DropReason::InnerLinkLocal),
        _ => None,
    }
}

/// What both addresses of a packet come to; `documentation`: packets with such addresses are dropped.
#[inline(always)]
pub fn special_pair(src: Option<DropReason>, dst: Option<DropReason>, documentation: bool) -> Option<DropReason> {
    use DropReason::{InnerDocumentation, InnerLinkLocal, InnerMartian};
    if src.is_none() && dst.is_none() {
        return None;
    }
    let either = |r| src == Some(r) || dst == Some(r);
    [InnerLinkLocal, InnerMartian, InnerDocumentation]
        .into_iter()
        .find(|r| either(*r))
        .filter(|r| *r != InnerDocumentation || documentation)
}

/// The C function of a family: 0, or the drop reason.
fn c_function(v6: bool) -> String {
    let args = if v6 { "__u64 hi, __u64 lo" } else { "__u32 a" };
    let (name, top, top_bits) = if v6 { ("6", "hi >> 48", 16u8) } else { ("4", "a >> 24", 8) };
    let mut s = format!(
        "/* Why a packet with this source (or destination) is not forwarded: docs/reference/special-addresses.md. 0: it is. */\n\
static __always_inline int tunny_special{name}({args}, int source)\n{{\n"
    );
    let mut rows: Vec<&Special> = SPECIAL.iter().filter(|r| r.v6 == v6).collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r.len));
    for r in rows.iter().filter(|r| r.len < top_bits && r.source != Say::Go) {
        let _ = writeln!(s, "\tif ({})\n\t\treturn {};", c_match(r), c_say(r));
    }
    let _ = writeln!(s, "\tswitch ({top}) {{");
    let says = |r: &Special| (r.source, r.destination);
    let same = |a: &&&Special, r: &Special| a.len < r.len && a.covers(r.addr) && says(a) == says(r);
    // What a shorter row says as well needs no line.
    let told: Vec<&Special> = rows.iter().filter(|r| !rows.iter().any(|a| same(&a, r))).copied().collect();
    let mut tops: Vec<u128> =
        told.iter().filter(|r| r.len >= top_bits && says(r) != GO).map(|r| r.addr >> (r.bits() - top_bits)).collect();
    tops.sort_unstable();
    tops.dedup();
    for t in tops {
        let _ = writeln!(s, "\tcase {t:#x}:");
        let of: Vec<_> = told.iter().filter(|r| r.len >= top_bits && r.addr >> (r.bits() - top_bits) == t).collect();
        for r in of.iter().filter(|r| says(r) != GO) {
            let exceptions: String = of
                .iter()
                .filter(|e| e.len > r.len && r.covers(e.addr) && says(e) == GO)
                .map(|e| format!("\t\t\tif ({})\n\t\t\t\treturn 0;\n", c_match(e)))
                .collect();
            let _ = match (r.len == top_bits, exceptions.as_str()) {
                (true, _) => writeln!(s, "\t\treturn {};", c_say(r)),
                (false, "") => writeln!(s, "\t\tif ({})\n\t\t\treturn {};", c_match(r), c_say(r)),
                (false, some) => writeln!(s, "\t\tif ({}) {{\n{some}\t\t\treturn {};\n\t\t}}", c_match(r), c_say(r)),
            };
        }
        if !of.iter().any(|r| r.len == top_bits && says(r) != GO) {
            s.push_str("\t\treturn 0;\n");
        }
    }
    s.push_str("\t}\n\treturn 0;\n}\n");
    s
}

fn c_match(r: &Special) -> String {
    if !r.v6 {
        return match r.len {
            32 => format!("a == {:#x}", r.addr),
            len => format!("a >> {} == {:#x}", 32 - len, r.addr >> (32 - len)),
        };
    }
    let (hi, lo) = ((r.addr >> 64) as u64, r.addr as u64);
    let low = match r.len {
        0..=64 => String::new(),
        128 => format!(" && lo == {lo:#x}ULL"),
        len => format!(" && lo >> {} == {:#x}ULL", 128 - len, lo >> (128 - len)),
    };
    match r.len {
        len @ 1..64 => format!("hi >> {} == {:#x}ULL", 64 - len, hi >> (64 - len)),
        _ => format!("hi == {hi:#x}ULL{low}"),
    }
}

fn c_say(r: &Special) -> String {
    let name = |say: Say| say.reason().map_or("0".to_string(), |why| format!("DROP_{}", why.name().to_uppercase()));
    match r.source == r.destination {
        true => name(r.source),
        false => format!("source ? {} : {}", name(r.source), name(r.destination)),
    }
}

/// For `bpf/include/abi.h`.
pub(crate) fn c_functions() -> String {
    let metadata = format!("#define TUNNY_METADATA_ADDRESS {METADATA_ADDRESS:#x}U");
    format!("\n{metadata}\n\n{}\n{}", c_function(false), c_function(true))
}

/// The reference page of special addresses (docs/reference/special-addresses.md).
pub fn special_reference() -> String {
    let mut s = String::from(
        "<!-- SPDX-License-Identifier: Apache-2.0 -->\n<!-- Generated by `cargo xtask reference` from crate abi: do not edit. -->\n\
# Special-purpose addresses\n\n\
The IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890, RFC 8190), row by row, and what becomes of a packet whose source or\n\
destination is in the row: a packet of a VM, one from the Internet to a public address, and one on a wire. Both engines hold to it. The columns\n\
S, D, F, G are the registry's Source, Destination, Forwardable and Globally Reachable (`-`: not said). The longest row decides.\n\n\
- A source must be one that may be a source, a destination one that may be a destination and is forwardable. *Globally reachable* does not decide:\n\
  the routes of the VPC and of the underlay do.\n\
- Link-local addresses of either family are never forwarded or translated (RFC 3927 section 7, RFC 4291 section 2.5.6). A packet for a VPC's own\n\
  gateway address (`spec.gateway.addresses`, 169.254.1.1 or fe80::1 for example) is not forwarded but answered, as ARP, ND and ping are;\n\
  one of a VM of the node itself to 169.254.169.254 is taken by the metadata address (docs/design/metadata.md).\n\
  A Vm, a Server, a pool or an elastic address cannot have an address that is never forwarded.\n\
- A deprecated row says nothing any more (`- - - -`), so the next shorter row decides for it. 2001:10::/28 (ORCHID) lies in 2001::/23, which is\n\
  neither a source nor a destination: it is dropped. 192.88.99.0/24 (6to4 relays) lies in no other row: it is ordinary unicast, and forwarded.\n\
- Documentation prefixes are forwarded, as in labs; with `spec.documentationPrefixes: drop` of the Gateway they are not.\n\
- Multicast (224.0.0.0/4, ff00::/8) is no part of the registries: `inner_multicast` as a destination, `inner_martian` as a source, in\n\
  neighbour discovery, too.\n\
- Outer addresses of tunnels are the underlay's matter, and are not looked at.\n\n",
    );
    for (v6, title) in [(false, "IPv4"), (true, "IPv6")] {
        let _ = write!(s, "## {title}\n\n| prefix | name | document | S D F G | as a source | as a destination |\n| --- | --- | --- | --- | --- | --- |\n");
        for r in SPECIAL.iter().filter(|r| r.v6 == v6) {
            let columns: Vec<String> = r.columns.chars().map(|c| c.to_string()).collect();
            let (from, to) = match (v6, r.len, r.addr) {
                (false, 32, 0xffff_ffff) => (r.source.text(), "`inner_broadcast`"),
                _ => (r.source.text(), r.destination.text()),
            };
            let _ = writeln!(s, "| {} | {} | {} | {} | {from} | {to} |", r.prefix(), r.name, r.rfc, columns.join(" "));
        }
        s.push('\n');
    }
    s.pop();
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last address of every row, and those beside them.
    fn edges(v6: bool) -> Vec<u128> {
        let rows = SPECIAL.iter().filter(|r| r.v6 == v6);
        rows.flat_map(|r| {
            let size = if r.len == 0 { u128::MAX } else { (1u128 << (r.bits() - r.len)) - 1 };
            let last = r.addr + size;
            [r.addr.wrapping_sub(1), r.addr, r.addr + size / 2, last, last.wrapping_add(1)]
        })
        .collect()
    }

    #[test]
    fn what_packets_ask_is_what_the_table_says() {
        let by_table = |a: IpAddr, source| special(a).and_then(|s| s.say(source).reason());
        for source in [true, false] {
            let every = (0..=u32::MAX).step_by(4093).map(u128::from);
            for a in edges(false).into_iter().filter(|a| *a <= u128::from(u32::MAX)).chain(every) {
                let a = a as u32;
                assert_eq!(
                    special4(a, source),
                    by_table(Ipv4Addr::from_bits(a).into(), source),
                    "{}",
                    Ipv4Addr::from_bits(a)
                );
            }
            let every = (0..=0xffffu128).flat_map(|top| (0..64u128).map(move |i| top << 112 | i << 108 >> 8 | i));
            for a in edges(true).into_iter().chain(every) {
                let got = special6((a >> 64) as u64, a as u64, source);
                assert_eq!(got, by_table(Ipv6Addr::from_bits(a).into(), source), "{}", Ipv6Addr::from_bits(a));
            }
        }
    }

    /// What the registry's columns demand: no row is more lenient than they are, but for documentation, which is an option.
    #[test]
    fn rows_keep_to_their_columns() {
        for r in SPECIAL {
            let [source, destination, forwardable, _]: [u8; 4] = r.columns.as_bytes().try_into().unwrap();
            assert!(r.addr == 0 || r.addr.trailing_zeros() >= u32::from(r.bits() - r.len), "{}", r.prefix());
            if r.columns == "----" {
                // Of itself it says nothing: what the next shorter row says, or nothing at all.
                let around =
                    SPECIAL.iter().filter(|s| s.v6 == r.v6 && s.len < r.len && s.covers(r.addr)).max_by_key(|s| s.len);
                let says = around.map_or(GO, |s| (s.source, s.destination));
                assert_eq!((r.source, r.destination), says, "{}", r.prefix());
                continue;
            }
            assert!(source == b'T' || r.source != Say::Go, "{}", r.prefix());
            assert_eq!((destination, forwardable) == (b'T', b'T'), r.destination == Say::Go, "{}", r.prefix());
            assert!((r.source == Say::Docs) == r.name.starts_with("Documentation"));
        }
    }

    #[test]
    fn link_local_is_told_before_martian_before_documentation() {
        use DropReason::{InnerDocumentation as Docs, InnerLinkLocal as Link, InnerMartian as Never};
        assert_eq!(special_pair(Some(Never), Some(Link), true), Some(Link));
        assert_eq!(special_pair(Some(Docs), Some(Never), true), Some(Never));
        assert_eq!(special_pair(None, Some(Docs), true), Some(Docs));
        assert_eq!(special_pair(Some(Docs), None, false), None);
        assert_eq!(special_pair(None, None, true), None);
    }

    #[test]
    fn committed_reference_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/special-addresses.md");
        assert_eq!(std::fs::read_to_string(path).unwrap(), special_reference(), "run `cargo xtask reference`");
    }
}

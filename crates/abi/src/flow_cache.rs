// SPDX-License-Identifier: Apache-2.0
//! The flow cache: what became of a flow's last packet, one 64-byte line a flow and direction, in front of the stages.
//!
//! A cache is an array of lines that one CPU (XDP) or one worker (Rust) has for itself: it alone reads and writes them, and they are
//! thrown away at will. A flow has two adjacent places: `bucket_of(h, chunks)` names the chunk of
//! FLOW_CHUNK_LINES lines, `bucket_of(h << 32, FLOW_CHUNK_LINES / 2)` the pair in it, where h is a hash of the key with a salt
//! of the cache's own (`flow_place` in bpf/tables/flow_cache.h); its bit 1 says which of both is looked at first. The engine that came through the stages with a
//! packet writes the line; a packet that finds its own key there goes on with what the line says, if the line is still valid.
//!
//! *Versions* say whether it is. There are [`FLOW_VERSIONS`] words, which a change raises and every cache reads: that of a VPC, and
//! that of an address in a VPC, found by hash; and one word of everything, in the root. A line holds the sum of the words that its
//! decision depends on, as they were before the first table was read for it. Words only grow, so an equal sum means that none was raised.
//! Who changes tables adds FLOW_CHANGING to each word concerned before a reader can see anything new, and when all is visible raises the
//! word and takes FLOW_CHANGING away: no line of a sum with such a bit is written, and none that was written before is valid meanwhile.
//! A collision of two words costs a packet that goes through the stages again, never a wrong one.
//!
//! *Kinds.* A line of a session ([`FLOW_PAIR`], [`FLOW_OUT`], [`FLOW_IN`]) names the session's record, and is valid only while the record is as the
//! stages would serve it: who has found the line reads the record, whose key is compared too. So the line itself needs 21 bits of the
//! addresses only. A packet of a session changes its record as it does in the stages: nothing of a connection's state lies in the line.
//!
//! *Customers.* A frame by an edge port has no VNI and no NC that sends it: the line ([`FLOW_PLAIN`]) has its tags in place of the one, and in
//! place of the other the port and the VPC that they stood for ([`FLOW_EDGE`]), which no NC of a line is. What goes to a customer is a line
//! whose next hop is none.

use crate::hash::{bucket_of, hash1, hash3};
use crate::layout::{bits, layouts, CType, Field, Layout};

layouts! {
    FLOW_LAYOUTS;
    /// A line of a flow cache: an IPv4 flow whose tunnels are over IPv4. What stands in the packet that way is said as it lies there, in
    /// network byte order.
    FlowLine: 64 {
        /// FLOW_PLAIN: source and destination of the inner packet, as there. A session: FLOW_MIX_SHIFT: 21 bits of a hash of them;
        /// FLOW_RECORD_SHIFT: line of its record (27 bits); the policy epoch that the record has.
        addresses: u64,
        /// VNI << 40 | protocol << 32 | source port << 16 | destination port (0 without ports), as loaded; the VNI of FLOW_IN is 0. Of a
        /// customer's frame: in place of the VNI the outer VLAN id << 12 | the inner one. Written last. A line whose `rest` is 0 is empty.
        rest: u64,
        /// Sum of the versions (48 bits); FLOW_TENANT_SHIFT: lower 16 bits of the tenant id of the VPC that sends. FLOW_IN: the VM's port.
        versions: u64,
        /// IPv4 address of the NC that sends, as in the packet. FLOW_IN: the VM's address, as in the packet. A customer's frame: FLOW_EDGE |
        /// number of its port << 24 | VNI, as four octets in network order.
        sender: u32,
        /// IPv4 address of the NC that gets it, as in the packet. FLOW_OUT: the public address as a number. To a customer: the circuit's key by
        /// tags.
        nc: u32,
        /// Destination's MAC and the first two octets of the gateway's, as in the packet.
        macs: u64,
        /// The other four octets.
        macs_rest: u32,
        /// VNI of the destination as in the packet (24 bits); FLOW_VM_SHIFT: lower 8 bits of the VM id, 0 to a customer.
        vni: u32,
        /// Line of the next hop (26 bits), 0: to a customer; FLOW_TENANT_HIGH_SHIFT: upper 4 bits of the tenant id; FLOW_KIND_SHIFT: kind.
        nexthop: u32,
        /// Outer source port, as in the packet, whose two highest bits are always set: in their places FLOW_METERED_VPC, FLOW_METERED_VM.
        /// FLOW_OUT: the public port as a number, and FLOW_METERED_VPC stands in `macs`.
        port: u16,
        /// Upper 16 bits of the VM id.
        vm_high: u16,
        /// CELL word: what the line sent on and has not yet told its VPC and VM.
        count: u64,
    }
}

bits! {
    FLOW_BITS;
    /// Lines in a chunk of a flow cache. The kernel keeps arrays of at most 32 KiB, its own header included, where it maps memory by huge pages; larger
    /// ones lie on pages of 4 KiB, of which a random access misses the entry in the TLB as well as the line.
    FLOW_CHUNK_LINES: u32 = 500;
    /// Bytes of a chunk: its lines, and room to begin at a multiple of 128.
    FLOW_CHUNK_BYTES: u32 = 64 * FLOW_CHUNK_LINES + 128;
    /// Words of versions beside the one in the root.
    FLOW_VERSIONS: u32 = 1 << 14;
    /// Version: what it stands for is being changed; added once for each change under way.
    FLOW_CHANGING: u64 = 1 << 48;
    /// FlowLine.rest: shift of the VNI.
    FLOW_VNI_SHIFT: u32 = 40;
    /// FlowLine.rest: shift of the protocol.
    FLOW_PROTOCOL_SHIFT: u32 = 32;
    /// FlowLine.versions: shift of the lower 16 bits of the tenant id.
    FLOW_TENANT_SHIFT: u32 = 48;
    /// FlowLine.nexthop: shift of the upper 4 bits of the tenant id.
    FLOW_TENANT_HIGH_SHIFT: u32 = 26;
    /// FlowLine.nexthop: shift of the kind.
    FLOW_KIND_SHIFT: u32 = 30;
    /// Kind: from a VM to a VM, without a session.
    FLOW_PLAIN: u32 = 0;
    /// Kind: from a VM to a VM, in a session of the filter.
    FLOW_PAIR: u32 = 1;
    /// Kind: from a VM to the Internet, in a session: it leaves without a tunnel.
    FLOW_OUT: u32 = 2;
    /// Kind: from the Internet to a VM, in a session: it comes without a tunnel.
    FLOW_IN: u32 = 3;
    /// FlowLine.sender of a customer's frame. What a tunnel from an address of 240.0.0.0/4 brings is nothing for a flow cache.
    FLOW_EDGE: u32 = 0xf000_0000;
    /// Mask of a circuit's key by tags, 28 bits: what FLOW_EDGE leaves of the sender's octets, with the tags in place of the VNI.
    FLOW_TAGS_MASK: u32 = 0x0fff_ffff;
    /// FlowLine.port: the VPC that sends has a meter.
    FLOW_METERED_VPC: u32 = 0x80;
    /// FlowLine.port: the VM that gets it has a meter.
    FLOW_METERED_VM: u32 = 0x40;
    /// FlowLine.addresses of a session: shift of the hash.
    FLOW_MIX_SHIFT: u32 = 43;
    /// FlowLine.addresses of a session: shift of the record's line.
    FLOW_RECORD_SHIFT: u32 = 16;
    /// FlowLine.vni: shift of the lower 8 bits of the VM id.
    FLOW_VM_SHIFT: u32 = 24;
    /// FlowLine.count: a line with one of these bits tells its count before it sends another packet on, so that a counting word that takes it
    /// as one addition does not run over.
    FLOW_SPILL: u64 = 1 << 61 | 1 << 37;
    /// One of so many packets that find another flow in their place takes it; a power of two. So of two flows that share a place one
    /// stays, and an attacker's many flows put few lines of others out.
    FLOW_EVICT_ONE_IN: u32 = 8;
    /// Lookups after which a CPU judges how well its cache does.
    FLOW_WINDOW: u64 = 1024;
    /// While too few lookups find something, one of so many packets looks; a power of two.
    FLOW_SPARSE_ONE_IN: u32 = 16;
}

/// Which word is the version of a VPC.
#[inline(always)]
pub const fn version_of_vpc(vni: u32, salt: u64) -> u32 {
    bucket_of(hash1((vni as u64) << 40, salt), FLOW_VERSIONS)
}

/// Which word is the version of an IPv4 address in a VPC.
#[inline(always)]
pub const fn version_of_v4(vni: u32, addr: u32, salt: u64) -> u32 {
    bucket_of(hash1((vni as u64) << 40 | (addr as u64) << 8, salt), FLOW_VERSIONS)
}

/// Which word is the version of an IPv6 address in a VPC.
#[inline(always)]
pub const fn version_of_v6(vni: u32, addr: u128, salt: u64) -> u32 {
    bucket_of(hash3(vni as u64, (addr >> 64) as u64, addr as u64, salt), FLOW_VERSIONS)
}

/// The C twins of the functions above.
pub fn c_versions() -> &'static str {
    "static __always_inline __u32 tunny_version_of_vpc(__u32 vni, __u64 salt)\n{\n\
\treturn tunny_bucket_of(tunny_hash1((__u64)vni << 40, salt), TUNNY_FLOW_VERSIONS);\n}\n\n\
static __always_inline __u32 tunny_version_of_v4(__u32 vni, __u32 addr, __u64 salt)\n{\n\
\treturn tunny_bucket_of(tunny_hash1((__u64)vni << 40 | (__u64)addr << 8, salt), TUNNY_FLOW_VERSIONS);\n}\n\n\
static __always_inline __u32 tunny_version_of_v6(__u32 vni, __u64 hi, __u64 lo, __u64 salt)\n{\n\
\treturn tunny_bucket_of(tunny_hash3(vni, hi, lo, salt), TUNNY_FLOW_VERSIONS);\n}\n"
}

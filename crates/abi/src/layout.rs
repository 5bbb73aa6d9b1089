// SPDX-License-Identifier: Apache-2.0
//! Layouts of table memory. Each structure is written once here; `c_header` prints its C twin.
//!
//! Table memory is an array of 64-byte lines, addressed by 26-bit line numbers. It is cut into segments of 65,536 lines;
//! each segment is one mmapable BPF array map (one element of 4 MiB), held in an array of maps by segment number. User
//! space maps all segments side by side, so that a line number times 64 is an offset. Line 0 is never used: 0 means none.
//! All words are in host byte order. An IPv4 address is its number (10.0.0.1 = 0x0a000001), an IPv6 address is two
//! numbers of 64 bits, a MAC address is a number of 48 bits (first octet uppermost).
//!
//! A line is written either by the configuration writer or by the engines, never by both (false sharing, and crash
//! safety: the writer's lines change only by publication). Memory model: x86 TSO. Loads are not reordered with loads and
//! stores not with stores, so "fill, then publish by one aligned 8-byte store" needs compiler barriers only. On a weaker
//! machine the publishing store must be a release, and BPF readers, which have no acquire load in clang 14, would rely
//! on address dependency: every published word is either the key itself or the address of what it publishes.

use crate::limits::*;

/// One field of a layout, for the C header and for layout checks.
#[derive(Debug)]
pub struct Field {
    /// Name, the same in both languages.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// C type of an element.
    pub c_type: &'static str,
    /// Elements, 0 if it is no array.
    pub count: usize,
    /// What it holds.
    pub doc: &'static str,
}

/// One structure, for the C header and for layout checks.
#[derive(Debug)]
pub struct Layout {
    /// Rust name; in C `struct tunny_<snake case>`.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Fields in order.
    pub fields: &'static [Field],
    /// What it is.
    pub doc: &'static str,
}

pub(crate) trait CType {
    const NAME: &'static str;
    const COUNT: usize = 0;
}
impl CType for u8 {
    const NAME: &'static str = "__u8";
}
impl CType for u16 {
    const NAME: &'static str = "__u16";
}
impl CType for u32 {
    const NAME: &'static str = "__u32";
}
impl CType for u64 {
    const NAME: &'static str = "__u64";
}
impl<T: CType, const N: usize> CType for [T; N] {
    const NAME: &'static str = T::NAME;
    const COUNT: usize = N;
}

macro_rules! layouts {
    ($list:ident; $($(#[doc = $sdoc:literal])* $name:ident: $size:literal { $($(#[doc = $fdoc:literal])* $field:ident: $ty:ty,)* })*) => {
        $(
            $(#[doc = $sdoc])*
            #[repr(C, align(8))]
            #[derive(Clone, Copy, Debug)]
            pub struct $name { $($(#[doc = $fdoc])* pub $field: $ty,)* }
            const _: () = assert!(size_of::<$name>() == $size);
        )*
        /// Every layout, in order of definition.
        pub const $list: &[Layout] = &[$(Layout {
            name: stringify!($name),
            size: $size,
            doc: concat!($($sdoc),*),
            fields: &[$(Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                size: size_of::<$ty>(),
                c_type: <$ty as CType>::NAME,
                count: <$ty as CType>::COUNT,
                doc: concat!($($fdoc),*),
            }),*],
        }),*];
    };
}
pub(crate) use layouts;

layouts! {
    LAYOUTS;
    /// The root of table memory: the one element of map `tunny_root`. Words up to `reserved` are written by the
    /// configuration writer, each by one aligned store; `punt_total_tat` onwards by the engines.
    Root: 12608 {
        /// ROOT_MAGIC once the writer has finished building; engines pass everything to the host before.
        magic: u64,
        /// [`layout_hash`](crate::layout_hash) of the writer.
        layout_hash: u64,
        /// Salt of hash1 and hash3 for every table.
        salt: u64,
        /// OPT_* bits, see their documentation.
        options: u64,
        /// The gateway's own IPv4 tunnel address, 0 if none.
        vtep4: u64,
        /// Upper half of the gateway's own IPv6 tunnel address.
        vtep6_hi: u64,
        /// Lower half of the gateway's own IPv6 tunnel address; both halves 0 if none.
        vtep6_lo: u64,
        /// Punts of a tenant, committed rate: RATE_LIMIT word.
        punt_limit_tenant: u64,
        /// Punts of all tenants together, committed rate: RATE_LIMIT word.
        punt_limit_total: u64,
        /// ICMP errors that the gateway sends for a tenant: RATE_LIMIT word.
        icmp_limit_tenant: u64,
        /// Table of VPCs by VNI (TenantBucket): TABLE_REF word.
        tenants: u64,
        /// Table of (VNI, NC) pairs that may send (WordBucket): TABLE_REF word.
        members: u64,
        /// VM-NC table for IPv4 (Vm4Bucket): TABLE_REF word.
        vm4: u64,
        /// VM-NC table for IPv6 (Vm6Bucket): TABLE_REF word.
        vm6: u64,
        /// Table outer IPv4 source -> NC id (WordBucket): TABLE_REF word.
        nc4: u64,
        /// Table outer IPv6 source -> NC id (Vm6Bucket with VNI 0, value nc): TABLE_REF word.
        nc6: u64,
        /// Table VM id -> meter block line (WordBucket): TABLE_REF word.
        vm_meters: u64,
        /// Drop counters by (VNI, reason) (DropBucket), written by the engines: TABLE_REF word, fixed size.
        drops: u64,
        /// Counter slots; XDP uses slot = CPU number, software workers the slots behind.
        slots: u64,
        /// Slots used by XDP, that is, the number of possible CPUs.
        xdp_slots: u64,
        /// Number of commits so far.
        generation: u64,
        /// First line of each chunk of 2^16 VM cells, 0 if none.
        vm_chunks: [u32; 256],
        /// First line of each chunk of 2^12 NCs, 0 if none. A chunk is 2^12 NC_WORD words, then 2^12 NcRecord.
        nc_chunks: [u32; 256],
        /// Public addresses and announced IPv6 prefixes: ROUTE_ROOT of IPv4 in the lower 32 bits, of IPv6 in the upper 32;
        /// what is ours has scope local there. 0: nothing plain is for the gateway.
        public_roots: u64,
        /// Way to the Internet: line of the NexthopGroup for IPv4 in the lower 32 bits, for IPv6 in the upper 32; 0: none.
        internet: u64,
        /// First line of each chunk of 2^12 tenants, 0 if none. A chunk is 2^12 TenantRecord, 2^12 TenantState, then for
        /// each of `tenant_words` 2^12 counting words (CELL).
        tenant_chunks: [u32; 256],
        /// Counting words of each tenant: slot s counts in word s modulo this number. If there are more slots, they share
        /// words by atomic additions, else each word belongs to its slot.
        tenant_words: u64,
        /// Groups of eight VM ids among which a VM's address chooses: `bucket_of(hash1(VM4_KEY), vm_groups)`. A VM whose
        /// group is full has its id elsewhere; the entry says which, this only where to look early.
        vm_groups: u64,
        /// The same for tenant ids: `bucket_of(hash1(VNI << 40), tenant_groups)`.
        tenant_groups: u64,
        /// Punts of a tenant, peak rate: RATE_LIMIT word.
        punt_peak_tenant: u64,
        /// Punts of all tenants together, peak rate: RATE_LIMIT word.
        punt_peak_total: u64,
        /// Ports of inline pairs (OPT_INLINE): number 2n is the server side of pair n, 2n + 1 its network side. Interface index of the port
        /// in the lower 32 bits, of the pair's other port in the upper 32; 0: no such port.
        wire_ends: [u64; 16],
        /// Servers behind each pair: ROUTE_ROOT of IPv4 in the lower 32 bits, of IPv6 in the upper 32. The value of a server's
        /// prefix is scope local with the VNI of its VPC.
        wire_servers: [u64; 8],
        /// Of each pair: MTU of its server side in bits 0-15, of its network side in bits 16-31; INLINE_VNI_SHIFT: the VNI of all its
        /// servers, 0 if they are of several VPCs.
        wire_words: [u64; 8],
        /// VPCs that have security groups. If there are any, engines ask early for what judging a packet takes.
        filtered: u64,
        /// Version of everything that flow caches depend on and that has no word of its own: settings, NCs, groups of next hops.
        flow_version: u64,
        /// Packets of VPCs that are served in software (POLICY_PATH_SOFTWARE), all together: RATE_LIMIT word.
        software_limit: u64,
        /// Edge ports: EDGE_PORT words by the port's number; 0: there is none.
        edge_ports: [u64; 16],
        /// Of each edge port: EtherType of the outer tag in bits 0-15, of the inner one in bits 16-31.
        edge_tpids: [u64; 16],
        /// Circuits of customers by their tags, and by VPC and line (CircuitBucket): TABLE_REF word; 0: the node is no edge.
        circuits: u64,
        /// Ports towards VMs of this node, which are in the table of circuits, too: how many there are.
        vm_ports: u64,
        /// VMs that are shaped or mirrored, whose classes are in the table of circuits, too: how many there are.
        shaped_vms: u64,
        /// Room for later versions.
        reserved: [u64; 54],
        /// GCRA time of all punts together, committed rate (engine-written), ns.
        punt_total_tat: u64,
        /// The same, peak rate.
        punt_total_peak_tat: u64,
        /// What PUNT_SHARE words count for; raised when packets were lost on the way, so that all begin anew.
        punt_epoch: u64,
        /// GCRA time of packets of VPCs that are served in software, ns.
        software_tat: u64,
        /// Fills the engine-written line.
        reserved_engine: [u64; 4],
        /// Packets of no tenant that were punted and not yet taken, by a hash of the destination: PUNT_SHARE words.
        punt_others: [u64; 8],
        /// The rings to the software path, by port slot * 64 + receive queue: entries in the upper 32 bits, 0: nobody says what is
        /// taken from it; packets that were punted and not yet taken in the lower 32.
        punt_rings: [u64; 1024],
    }

    /// Bucket of table `tenants`: all that a common packet needs of three VPCs, in two adjacent lines at an even line number.
    TenantBucket: 128 {
        /// TENANT_KEY words, 0 = empty; published last.
        keys: [u64; 3],
        /// ROUTE_ROOT of IPv4 in the lower 32 bits, of IPv6 in the upper 32: one store changes the whole route set and,
        /// through the two generation bits, which VM entries are visible.
        roots: [u64; 3],
        /// Lower 32 bits of the gateway's MAC address in the VPC.
        macs: [u32; 3],
        /// Line of the next bucket in the chain, 0 if none.
        next: u32,
        /// PEER words of the three VPCs, in any order; 0 = empty. They repeat what the IPv4 tree says of some addresses, so that
        /// an engine need not ask it: each holds as long as the entry's `roots`, if it is loaded after that. A VPC whose
        /// `roots` name no IPv4 tree has none, whatever stands here.
        peers: [u64; 6],
        /// Lower halves of the POLICY words.
        policies: [u32; 3],
        /// Not used.
        reserved: u32,
    }

    /// What is seldom asked of a tenant, by its id.
    TenantRecord: 64 {
        /// VNI and TENANT_ICMP_OFF; 0 while not in use.
        ident: u64,
        /// Room for later versions.
        reserved_hot: [u64; 2],
        /// IPv4 address of the gateway in this VPC (source of its ICMP), 0 if none.
        gateway4: u32,
        /// Line of the VPC's meter block, if its key has TENANT_METERED.
        meter: u32,
        /// Upper half of the gateway's IPv6 address.
        gateway6_hi: u64,
        /// Lower half of the gateway's IPv6 address; both 0 if none.
        gateway6_lo: u64,
        /// Number of commits to this tenant so far.
        generation: u64,
        /// POLICY word: what sessions of this VPC may do, and the epoch under which they were judged; 0: no sessions. Its
        /// lower half stands in the VPC's entry too.
        policy: u64,
    }

    /// Words of a tenant that the engines change by atomics, by its id.
    TenantState: 64 {
        /// GCRA time of punts, committed rate, ns.
        punt_tat: u64,
        /// GCRA time of the ICMP limit, ns.
        icmp_tat: u64,
        /// What was carried out of the tenant's counting words: CELL_CARRY word.
        totals: u64,
        /// GCRA time of punts, peak rate, ns.
        punt_peak_tat: u64,
        /// Punts that the meters let through.
        punts: u64,
        /// Punts that they dropped.
        punts_limited: u64,
        /// Packets that were punted and not yet taken: PUNT_SHARE word.
        punts_held: u64,
        /// Packets that were handed over because the VPC, or the service that they need, is served in software.
        software: u64,
    }

    /// Bucket of a table of one-word entries: key in the upper bits, value in the lower, 0 = empty. Each entry changes by
    /// one store. See WORD_*: the split is per table.
    WordBucket: 64 {
        /// Entries.
        entries: [u64; 7],
        /// Line of the next bucket in the chain, 0 if none.
        next: u32,
        /// Not used.
        reserved: u32,
    }

    /// Bucket of the VM-NC table for IPv4.
    Vm4Bucket: 64 {
        /// VM4_KEY words, 0 = empty; published last, cleared first.
        keys: [u64; 3],
        /// Values: three words of 32 bits an entry: MAC upper 32 bits; MAC lower 16 bits << 16 | VM id upper 16 bits;
        /// VM id lower 8 bits << 24 | NC id (20 bits) << 4 | VM_FLAG_*.
        values: [u32; 9],
        /// Line of the next bucket in the chain, 0 if none.
        next: u32,
    }

    /// Bucket of the VM-NC table for IPv6: two adjacent lines, at an even line number.
    Vm6Bucket: 128 {
        /// VM6_KEY words, 0 = empty; published last, cleared first.
        keys: [u64; 3],
        /// Line of the next bucket in the chain, 0 if none.
        next: u64,
        /// IPv6 addresses: upper half, lower half, for each entry.
        addrs: [u64; 6],
        /// Values: MAC << 16 | VM_FLAG_*; VM id << 32 | NC id, for each entry.
        values: [u64; 6],
    }

    /// Bucket of the table of circuits: two adjacent lines, at an even line number. There are no chains: the table is built anew by each
    /// change, with so many buckets that each key has room in its own, and swapped by one store.
    CircuitBucket: 128 {
        /// CIRCUIT words, 0 = empty.
        words: [u64; 8],
        /// What belongs to each. By tags: the VNI, 0 if only the customer is known, at CIRCUIT_LINE_SHIFT the line, at CIRCUIT_GATEWAY_SHIFT the
        /// gateway's address. By VPC and line: the MAC address of the CE, at CIRCUIT_CLASS_SHIFT the class by which what leaves is shaped, 0: it is not.
        values: [u64; 8],
    }

    /// Counts the packets delivered to eight VMs: cell i belongs to VM id 8n + i. A chunk is 2^13 lines of cells, then as
    /// many lines of CELL_CARRY words: what was carried out of them.
    VmCells: 64 {
        /// CELL words: packets << 40 | bytes, added to by one atomic. An addition that finds a CELL_SPILL_MASK bit set
        /// carries it over.
        packed: [u64; 8],
    }

    /// Address of an NC. Immutable while published.
    NcRecord: 64 {
        /// Room for later versions.
        reserved_first: u64,
        /// Upper half of an IPv6 address; 0 for IPv4.
        addr_hi: u64,
        /// Lower half of an IPv6 address, or an IPv4 address.
        addr_lo: u64,
        /// Room for later versions.
        reserved: [u64; 5],
    }

    /// An ECMP group. A member is changed by one store; a shrinking group first fills the slot from its last member.
    NexthopGroup: 64 {
        /// Members in use.
        count: u32,
        /// Lines of Nexthop.
        members: [u32; 15],
    }

    /// An underlay next hop. Each word changes by one store.
    Nexthop: 64 {
        /// Destination MAC in the lower 48 bits, NEXTHOP_* bits above.
        dmac: u64,
        /// Source MAC in the lower 48 bits, MTU of the port in the upper 16.
        smac_mtu: u64,
        /// Egress interface.
        ifindex: u32,
        /// Not used.
        reserved32: u32,
        /// Address of the neighbour, as in NcRecord, for display and resolution.
        addr_hi: u64,
        /// Lower half, or IPv4.
        addr_lo: u64,
        /// Room for later versions.
        reserved: [u64; 3],
    }

    /// First line of a meter block: a two-rate three-color meter (RFC 2698) over bytes and one over packets, as
    /// virtual-time (GCRA) parameters. A rate of 0 means no limit.
    MeterConfig: 64 {
        /// Committed byte rate: ns << 16 per byte.
        byte_cir: u64,
        /// Committed byte burst, ns.
        byte_cbs: u64,
        /// Peak byte rate: ns << 16 per byte.
        byte_pir: u64,
        /// Peak byte burst, ns.
        byte_pbs: u64,
        /// Committed packet rate: ns << 16 per packet.
        packet_cir: u64,
        /// Committed packet burst, ns.
        packet_cbs: u64,
        /// Peak packet rate: ns << 16 per packet.
        packet_pir: u64,
        /// Peak packet burst, ns.
        packet_pbs: u64,
    }

    /// Second line of a meter block, engine-written by atomics.
    MeterState: 64 {
        /// Theoretical arrival times, ns: committed bytes.
        byte_c_tat: u64,
        /// Peak bytes.
        byte_p_tat: u64,
        /// Committed packets.
        packet_c_tat: u64,
        /// Peak packets.
        packet_p_tat: u64,
        /// Packets found green.
        green: u64,
        /// Packets found yellow.
        yellow: u64,
        /// Packets found red.
        red: u64,
        /// Not used.
        reserved: u64,
    }

    /// Inner node of a route tree over 32-bit keys: 16 children in adjacent lines from `child`.
    /// The child of key x is the number of bounds that are less than x. Unused bounds are all ones.
    Inner32: 64 {
        /// Inclusive upper bounds of all children but the last.
        bounds: [u32; 15],
        /// Line of the first child.
        child: u32,
    }

    /// Leaf over 32-bit keys: eight intervals, the value of key x is at the number of bounds that are less than x.
    Leaf32: 64 {
        /// Inclusive upper bounds of all intervals but the last. Unused bounds are all ones.
        bounds: [u32; 7],
        /// Not used.
        reserved: u32,
        /// ROUTE_VALUE words.
        values: [u32; 8],
    }

    /// The whole tree of a VPC with few routes, over 32-bit keys: 21 intervals of eight values, in two adjacent lines. The
    /// value of key x is number (pick >> 3n & 7), where n is the number of bounds that are less than x.
    Flat32: 128 {
        /// Inclusive upper bounds of all intervals but the last. Unused bounds are all ones.
        bounds: [u32; 20],
        /// Numbers of values: three bits an interval.
        picks: u64,
        /// ROUTE_VALUE words.
        values: [u32; 8],
        /// Room for later versions.
        reserved: u64,
    }

    /// Inner node over 64-bit keys: eight children.
    Inner64: 64 {
        /// Inclusive upper bounds of all children but the last. Unused bounds are all ones.
        bounds: [u64; 7],
        /// Line of the first child.
        child: u32,
        /// Not used.
        reserved: u32,
    }

    /// Leaf over 64-bit keys: six intervals.
    Leaf64: 64 {
        /// Inclusive upper bounds of all intervals but the last. Unused bounds are all ones.
        bounds: [u64; 5],
        /// ROUTE_VALUE words.
        values: [u32; 6],
    }

    /// Four drop counters, claimed and counted by the engines.
    DropBucket: 64 {
        /// Key (VNI << 16 | reason << 8 | 1) and packets, four times; claimed by compare-and-swap of a zero key.
        pairs: [u64; 8],
    }

    /// Statistics of one slot: an element of map `tunny_stats`. Only the slot's owner writes it.
    Stats: 1536 {
        /// Packets taken in.
        rx: u64,
        /// Bytes taken in.
        rx_bytes: u64,
        /// Packets that the engine generated (ICMP errors, fragments beyond the first).
        generated: u64,
        /// Packets sent on (outcome).
        forwarded: u64,
        /// Bytes sent on.
        forwarded_bytes: u64,
        /// Packets answered (outcome).
        answered: u64,
        /// Packets left to the host (outcome).
        passed: u64,
        /// Packets dropped (outcome).
        dropped: u64,
        /// Packets handed to the software path.
        punted: u64,
        /// Drops that found no room in the table of drop counters.
        drop_overflow: u64,
        /// Packets that stage nat sent on, of those in `forwarded`.
        nat: u64,
        /// Packets that the flow cache sent on, of those in `forwarded`.
        flow_hits: u64,
        /// Lines written in the flow cache.
        flow_fills: u64,
        /// Lines of other flows that were overwritten.
        flow_evictions: u64,
        /// Room for later versions.
        reserved: [u64; 18],
        /// Drops by reason number.
        drops: [u64; 128],
        /// Punts by reason number.
        punts: [u64; 32],
    }

    /// What XDP puts in front of a punted packet (XDP metadata, 32 bytes).
    PuntMeta: 32 {
        /// PUNT_MAGIC.
        magic: u32,
        /// PuntReason number.
        reason: u8,
        /// Not used.
        flags: u8,
        /// Offset of the inner Ethernet header from the start of the packet, 0 if not parsed.
        inner_offset: u16,
        /// VNI, if parsed.
        vni: u32,
        /// Ingress interface.
        ifindex: u32,
        /// Time of arrival, CLOCK_MONOTONIC ns.
        time: u64,
        /// Line of the tenant's record, 0 if not looked up.
        tenant: u32,
        /// Whose share of the ring it takes: the line of a TenantState, or 1 and the number of a word of `punt_others`; 0: nobody's.
        share: u32,
    }

    /// A captured or sampled packet in ring buffer `tunny_events`.
    Event: 288 {
        /// CLOCK_MONOTONIC ns.
        time: u64,
        /// Ingress interface.
        ifindex: u32,
        /// VNI, if parsed.
        vni: u32,
        /// Length of the packet on the wire.
        length: u32,
        /// Bytes of `data` that are valid.
        captured: u16,
        /// EVENT_*.
        kind: u8,
        /// DropReason or PuntReason number.
        reason: u8,
        /// Not used.
        reserved: u64,
        /// Start of the packet.
        data: [u8; 256],
    }
}

macro_rules! bits {
    ($list:ident; $($(#[doc = $doc:literal])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[doc = $doc])* pub const $name: $ty = $value;)*
        /// Every bit constant as (name, value, documentation), for the C header.
        pub const $list: &[(&str, u64, &str)] = &[$((stringify!($name), $name as u64, concat!($($doc),*)),)*];
    };
}
pub(crate) use bits;

bits! {
    BITS;
    /// "TUNNY" and a version digit.
    ROOT_MAGIC: u64 = 0x0031_594e_4e55_5400;
    /// First word of punt metadata.
    PUNT_MAGIC: u32 = 0x544e_5031;
    /// In the VLAN tag by which tc tells the software path of a packet: the slot of the port by which it came is below, the punt reason above.
    PUNT_TAG_REASON_SHIFT: u32 = 9;

    /// options: only known NCs that host the VNI may send.
    OPT_SOURCE_STRICT: u64 = 1 << 0;
    /// options: compute the outer UDP checksum over IPv4.
    OPT_UDP4_CHECKSUM: u64 = 1 << 1;
    /// options: compute the outer UDP checksum over IPv6.
    OPT_UDP6_CHECKSUM: u64 = 1 << 2;
    /// options: RFC 2983 uniform model: DSCP is carried between outer and inner header both ways. Else the pipe model.
    OPT_DSCP_UNIFORM: u64 = 1 << 3;
    /// options: no ECN processing: outer ECN is ignored on receipt and zero when sent (RFC 6040 compatibility mode).
    OPT_ECN_OFF: u64 = 1 << 4;
    /// options: send ICMP errors.
    OPT_ICMP: u64 = 1 << 5;
    /// options: a zero outer UDP checksum over IPv6 is dropped instead of accepted (RFC 6936 is off).
    OPT_UDP6_ZERO_REFUSED: u64 = 1 << 6;
    /// options: dropped packets go to the event ring too.
    OPT_CAPTURE_DROPS: u64 = 1 << 7;
    /// options: shift of the 6-bit DSCP of outer headers in the pipe model.
    OPT_DSCP_SHIFT: u32 = 8;
    /// options: punted packets go to the event ring too.
    OPT_CAPTURE_PUNTS: u64 = 1 << 14;
    /// options: shift of the 16-bit VXLAN UDP port.
    OPT_PORT_SHIFT: u32 = 16;
    /// options: shift of the 8-bit sampling exponent n: one packet in 2^n goes to the event ring; 0 = none.
    OPT_SAMPLE_SHIFT: u32 = 32;
    /// options: role filter. Frames pass between the two ports of inline pairs; nothing is a tunnel.
    OPT_INLINE: u64 = 1 << 40;
    /// options: packets from or to a prefix for documentation are dropped.
    OPT_DOCUMENTATION_DROPPED: u64 = 1 << 42;
    /// options: an IPv6 packet of at most 1,280 bytes that does not fit the underlay is sent in fragments of its tunnel packet.
    OPT_TUNNEL_FRAGMENTS: u64 = 1 << 43;
    /// wire_words: shift of the VNI.
    INLINE_VNI_SHIFT: u32 = 32;

    /// RATE_LIMIT: shift of the burst in packets; the lower 32 bits are ns per packet, 0 = no limit.
    RATE_LIMIT_BURST_SHIFT: u32 = 32;
    /// PUNT_SHARE: shift of the epoch; the lower 32 bits count packets, 0 if the epoch is another one.
    PUNT_EPOCH_SHIFT: u32 = 32;
    /// Words of `punt_others`.
    PUNT_OTHERS: u32 = 8;
    /// TABLE_REF: shift of the number of buckets; the lower 32 bits are the first line. 0 = no table.
    TABLE_REF_BUCKETS_SHIFT: u32 = 32;

    /// TENANT_KEY: shift of the VNI.
    TENANT_VNI_SHIFT: u32 = 40;
    /// TENANT_KEY: the entry is in use. A key that is not zero but lacks it is a slot that may not be refilled yet.
    TENANT_VALID: u64 = 1 << 39;
    /// TENANT_KEY: the VPC has a meter.
    TENANT_METERED: u64 = 1 << 38;
    /// TENANT_KEY: the VPC has a way to the Internet (POLICY_NAT).
    TENANT_NAT: u64 = 1 << 37;
    /// TENANT_KEY: the VPC has security groups (POLICY_FILTER).
    TENANT_FILTERED: u64 = 1 << 36;
    /// TENANT_KEY: shift of the tenant id (20 bits); the upper 16 bits of the gateway's MAC address are below.
    TENANT_ID_SHIFT: u32 = 16;
    /// PEER: shift of the network address of an IPv4 route to a peer inside which there is no other route.
    PEER_NETWORK_SHIFT: u32 = 32;
    /// PEER: shift of the peer's VNI.
    PEER_VNI_SHIFT: u32 = 8;
    /// PEER: shift of the prefix length (6 bits, 1 to 32).
    PEER_LENGTH_SHIFT: u32 = 2;
    /// PEER: whose word it is: number of the entry in the bucket, plus one.
    PEER_ENTRY_MASK: u64 = 3;
    /// ident: the VPC has no ICMP errors sent for it.
    TENANT_ICMP_OFF: u64 = 1 << 25;

    /// POLICY: the VPC has a way to the Internet (Snat or elastic addresses).
    POLICY_NAT: u64 = 1 << 0;
    /// POLICY: established sessions stay in the software path (`offload: off`).
    POLICY_SOFTWARE: u64 = 1 << 1;
    /// POLICY: a TCP packet without SYN and without a session makes one instead of being dropped.
    POLICY_PICKUP: u64 = 1 << 2;
    /// POLICY: security groups judge what this VPC sends and receives.
    POLICY_FILTER: u64 = 1 << 3;
    /// POLICY, a path bit: the VPC is served in software. What it sends, and what comes for it from the Internet, is handed over.
    POLICY_PATH_SOFTWARE: u64 = 1 << 4;
    /// POLICY, a path bit: its packets to peers are handed over.
    POLICY_PATH_PEERINGS: u64 = 1 << 5;
    /// POLICY, a path bit: its packets that belong to sessions are handed over, translated or judged.
    POLICY_PATH_SESSIONS: u64 = 1 << 6;
    /// POLICY, a path bit: there are VMs in it that are shaped or mirrored, so that of each packet it is asked who sends it.
    POLICY_SHAPED: u64 = 1 << 7;
    /// POLICY: the path bits. They say where packets are served and nothing of what becomes of them, so the epoch does not change with them.
    POLICY_PATHS: u64 = 0xf << 4;
    /// POLICY: shift of the 16-bit epoch, raised by each change that sessions must be judged again for.
    POLICY_EPOCH_SHIFT: u32 = 16;

    /// ROUTE_ROOT: mask of the line of the tree's top node.
    ROOT_LINE_MASK: u32 = (1 << LINE_BITS) - 1;
    /// ROUTE_ROOT: shift of the 4-bit number of levels; 0 = no routes, 1 = the line is a leaf.
    ROOT_LEVELS_SHIFT: u32 = 26;
    /// ROUTE_ROOT of IPv4: in place of the number of levels: the line is the first of a Flat32.
    ROOT_FLAT: u32 = 15;
    /// ROUTE_ROOT: no route of another scope lies inside a local route, and every VM of this family lies inside a local
    /// route, so an entry in the VM-NC table proves that the route is local.
    ROOT_SIMPLE: u32 = 1 << 30;
    /// ROUTE_ROOT: one bit of the tenant's generation (IPv4 half: bit 0, IPv6 half: bit 1).
    ROOT_GENERATION: u32 = 1 << 31;

    /// ROUTE_VALUE: shift of the 4-bit scope (SCOPE_*); the lower 28 bits are its argument.
    VALUE_SCOPE_SHIFT: u32 = 28;
    /// ROUTE_VALUE: mask of the argument: for peer the peer's VNI, for line the number of the VPC's line, for SCOPE_DESCEND a line of memory.
    VALUE_ARG_MASK: u32 = (1 << 28) - 1;
    /// No route.
    SCOPE_NONE: u32 = 0;
    /// In this VPC: with its destination, or, if there is an argument, with the VM that has IPv4 address 0.0.0.0 + argument.
    SCOPE_LOCAL: u32 = 1;
    /// In the VPC whose VNI the argument is.
    SCOPE_PEER: u32 = 2;
    /// Dropped on purpose.
    SCOPE_BLACKHOLE: u32 = 3;
    /// The Internet.
    SCOPE_INTERNET: u32 = 4;
    /// A dedicated line of this VPC, whose number the argument is.
    SCOPE_LINE: u32 = 5;
    /// Another region.
    SCOPE_REGION: u32 = 6;
    /// IPv6 only, not a scope: look up the lower 64 bits in the tree at line `argument` with (scope - SCOPE_DESCEND + 1) levels.
    SCOPE_DESCEND: u32 = 7;

    /// VM4_KEY: shift of the VNI; the address is in bits 8-39, the state in bits 0-7.
    VM4_VNI_SHIFT: u32 = 40;
    /// VM4_KEY: shift of the address.
    VM4_ADDR_SHIFT: u32 = 8;
    /// VM6_KEY: shift of the VNI; the tag (lower 32 bits of hash3) is in bits 8-39, the state in bits 0-7.
    VM6_VNI_SHIFT: u32 = 40;
    /// VM6_KEY: shift of the tag.
    VM6_TAG_SHIFT: u32 = 8;
    /// Key state: mask.
    KEY_STATE_MASK: u64 = 0xff;
    /// Key state: the entry is in use.
    KEY_VALID: u64 = 1 << 0;
    /// Key state: visible only when the tenant's generation equals the key's.
    KEY_ADDING: u64 = 1 << 1;
    /// Key state: visible only while the tenant's generation differs from the key's.
    KEY_DYING: u64 = 1 << 2;
    /// Key state: shift of the 2-bit generation of KEY_ADDING and KEY_DYING.
    KEY_GENERATION_SHIFT: u32 = 3;

    /// VM entry flag: the VM has a meter (table vm_meters).
    VM_FLAG_METERED: u32 = 1 << 0;
    /// VM entry flag: the address is the gateway's own in this VPC; NC id and VM id are 0.
    VM_FLAG_GATEWAY: u32 = 1 << 1;
    /// VM entry flag: the VM is shaped or mirrored (CIRCUIT_VM_CLASS), so that the software path serves what it sends and gets.
    VM_FLAG_SHAPED: u32 = 1 << 2;

    /// CIRCUIT: the entry is in use.
    CIRCUIT_VALID: u64 = 1 << 63;
    /// CIRCUIT: mask of the key: port << 24 | customer << 12 | overlay (VLAN ids, 0: no such tag), or CIRCUIT_BY_VNI | VNI << 8 | line.
    CIRCUIT_KEY_MASK: u64 = (1 << 33) - 1;
    /// CIRCUIT key: it is known by VPC and line, not by its tags.
    CIRCUIT_BY_VNI: u64 = 1 << 32;
    /// CIRCUIT key: it is a VM port: CIRCUIT_VM_PORT | interface index (30 bits). The entry has the VPC at CIRCUIT_TAGS_SHIFT, its value the VM's MAC
    /// address, at CIRCUIT_MTU_SHIFT the port's MTU.
    CIRCUIT_VM_PORT: u64 = 1 << 31;
    /// CIRCUIT key: the same once more, found by VPC and MAC address: in the bucket of VNI << 40 ^ MAC address.
    CIRCUIT_VM_MAC: u64 = 3 << 30;
    /// CIRCUIT key: the classes of a VM that is shaped, or mirrored (classes 0): CIRCUIT_VM_CLASS | class of what it gets (16 bits), found as CIRCUIT_VM_MAC. The entry has
    /// the VPC at CIRCUIT_TAGS_SHIFT, its value the VM's MAC address, at CIRCUIT_CLASS_SHIFT the class of what it sends.
    CIRCUIT_VM_CLASS: u64 = 1 << 29;
    /// Value of a VM port's CIRCUIT: shift of the MTU.
    CIRCUIT_MTU_SHIFT: u32 = 48;
    /// Mask of the interface index in a VM port's CIRCUIT.
    CIRCUIT_IFINDEX_MASK: u32 = (1 << 30) - 1;
    /// CIRCUIT key: shift of the port.
    CIRCUIT_PORT_SHIFT: u32 = 24;
    /// CIRCUIT key: shift of the customer's tag.
    CIRCUIT_OUTER_SHIFT: u32 = 12;
    /// CIRCUIT key: in place of an overlay's tag: the customer has circuits at this port.
    CIRCUIT_CUSTOMER: u64 = 0xfff;
    /// CIRCUIT by VPC and line: shift of the key by tags, 28 bits. CIRCUIT by tags: shift of mac_mark of the MAC address that frames come from, 0: any.
    CIRCUIT_TAGS_SHIFT: u32 = 33;
    /// mac_mark: its bits.
    MAC_MARK_BITS: u32 = 30;
    /// Drop counters, in place of a VNI: a customer whose overlay is not known: DROP_CUSTOMER | port << 12 | customer's VLAN id.
    DROP_CUSTOMER: u32 = 1 << 24;
    /// Shift of the port in it.
    DROP_CUSTOMER_PORT_SHIFT: u32 = 12;
    /// Value of a CIRCUIT by VPC and line: shift of its class.
    CIRCUIT_CLASS_SHIFT: u32 = 48;
    /// Value of a CIRCUIT by tags: shift of its line (8 bits).
    CIRCUIT_LINE_SHIFT: u32 = 24;
    /// Value of a CIRCUIT by tags: shift of the gateway's IPv4 address on the circuit; 0: its control packets are no special ones.
    CIRCUIT_GATEWAY_SHIFT: u32 = 32;
    /// EDGE_PORT: the port is there. The interface is in the lower 32 bits.
    EDGE_PORT_VALID: u64 = 1 << 63;
    /// EDGE_PORT: shift of the 16-bit MTU.
    EDGE_PORT_MTU_SHIFT: u32 = 32;
    /// EDGE_PORT: shift of the number of tags (0 to 2) of its frames.
    EDGE_PORT_TAGS_SHIFT: u32 = 48;
    /// EDGE_PORT: the port is being changed, so that its frames are left to the host.
    EDGE_PORT_CHANGES: u64 = 1 << 50;
    /// EDGE_PORT: the port is at another node, and no interface here. Its word in edge_tpids has that node's numbers as an NC, each plus 1: by IPv4 in
    /// the lower 32 bits, by IPv6 in the upper ones; 0: it has no such address.
    EDGE_PORT_ELSEWHERE: u64 = 1 << 52;
    /// EDGE_PORT: a tunnel interface (TUN), whose packets have no Ethernet header. Only the software path serves it.
    EDGE_PORT_TUN: u64 = 1 << 51;

    /// Table `members`: key is VNI << 40 | outer IPv4 source << 8 | MEMBER_V4, or VNI << 40 | NC id << 8 | MEMBER_V6. The
    /// whole word is the key; there is no value.
    WORD_MEMBER_SHIFT: u32 = 0;
    /// Table `members`: the sender is an IPv4 address.
    MEMBER_V4: u64 = 1;
    /// Table `members`: the sender is the id of an NC with an IPv6 address.
    MEMBER_V6: u64 = 2;
    /// Table `nc4`: shift of the outer IPv4 address; the lower 32 bits are the NC id.
    WORD_NC4_SHIFT: u32 = 32;
    /// Table `vm_meters`: shift of the VM id; the lower 32 bits are the line of the meter block.
    WORD_METER_SHIFT: u32 = 32;

    /// CELL: shift of the packet count.
    CELL_PACKETS_SHIFT: u32 = 40;
    /// CELL: when one of these bits was set before an addition, the adder clears both and carries those that were set.
    CELL_SPILL_MASK: u64 = 1 << 63 | 1 << 39;
    /// CELL_CARRY: the upper 32 bits count carries of 2^23 packets, the lower ones carries of 2^39 bytes.
    CELL_CARRY_SHIFT: u32 = 32;

    /// NC_WORD: the NC is in use. One word an NC, so that those of a few thousand NCs stay in the first caches.
    NC_VALID: u64 = 1 << 0;
    /// NC_WORD: its address is IPv6 and is in its record; else it is in the upper 32 bits.
    NC_V6: u64 = 1 << 1;
    /// NC_WORD: shift of the line (26 bits) of the NexthopGroup that leads to the NC, 0 if the kernel has no route.
    NC_GROUP_SHIFT: u32 = 4;
    /// Nexthop.dmac: the MAC address is known and the link is up.
    NEXTHOP_READY: u64 = 1 << 48;

    /// Event: a dropped packet.
    EVENT_DROP: u8 = 1;
    /// Event: a punted packet.
    EVENT_PUNT: u8 = 2;
    /// Event: a sampled packet.
    EVENT_SAMPLE: u8 = 3;
}

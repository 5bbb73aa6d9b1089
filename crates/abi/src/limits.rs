// SPDX-License-Identifier: Apache-2.0
//! Every limit in one place, with the relations between them asserted at compile time.

macro_rules! limits {
    ($($(#[doc = $doc:literal])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[doc = $doc])* pub const $name: $ty = $value;)*
        /// Every limit as (name, value, documentation), for the C header and the reference.
        pub const LIMITS: &[(&str, u64, &str)] = &[$((stringify!($name), $name as u64, concat!($($doc),*)),)*];
    };
}

limits! {
    /// Bytes in a line, the unit of table memory: one x86 cache line.
    LINE_BYTES: u32 = 64;
    /// log2 of the lines in a segment. A segment is one BPF array map of 4 MiB, the unit of growth.
    SEGMENT_SHIFT: u32 = 16;
    /// Lines in a segment.
    SEGMENT_LINES: u32 = 1 << SEGMENT_SHIFT;
    /// Bytes in a segment.
    SEGMENT_BYTES: u32 = SEGMENT_LINES * LINE_BYTES;
    /// Bits in a line number: table memory holds at most 2^26 lines, 4 GiB.
    LINE_BITS: u32 = 26;
    /// Segments at most.
    SEGMENTS_MAX: u32 = 1 << (LINE_BITS - SEGMENT_SHIFT);
    /// VMs at most (24-bit VM ids).
    VMS_MAX: u32 = 1 << 24;
    /// log2 of the VM ids in a chunk of VM cells.
    VM_CHUNK_SHIFT: u32 = 16;
    /// Chunks of VM cells at most.
    VM_CHUNKS_MAX: u32 = VMS_MAX >> VM_CHUNK_SHIFT;
    /// NCs at most (20-bit NC ids; id 0 is the gateway itself).
    NCS_MAX: u32 = 1 << 20;
    /// log2 of the NC ids in a chunk of NC records.
    NC_CHUNK_SHIFT: u32 = 12;
    /// Chunks of NC records at most.
    NC_CHUNKS_MAX: u32 = NCS_MAX >> NC_CHUNK_SHIFT;
    /// Tenants (VPCs) at most (20-bit tenant ids).
    TENANTS_MAX: u32 = 1 << 20;
    /// log2 of the tenant ids in a chunk of tenants.
    TENANT_CHUNK_SHIFT: u32 = 12;
    /// Chunks of tenants at most.
    TENANT_CHUNKS_MAX: u32 = TENANTS_MAX >> TENANT_CHUNK_SHIFT;
    /// Counting words of a tenant at most; more slots share them.
    TENANT_WORDS_MAX: u32 = 8;
    /// Routes at most by default.
    ROUTES_MAX: u32 = 1 << 24;
    /// Next hops in an ECMP group at most.
    GROUP_NEXTHOPS_MAX: u32 = 15;
    /// VPCs that one packet may pass through by peer routes, the first one not counted.
    PEER_HOPS_MAX: u32 = 4;
    /// Lines that one lookup follows in the chain of a bucket; an insert that would exceed it is refused and the table grows.
    CHAIN_MAX: u32 = 8;
    /// Levels of a route tree, the leaf counted.
    TREE_LEVELS_MAX: u32 = 10;
    /// Slots of statistics and counters: one per CPU for XDP (by CPU number), then one per software worker.
    SLOTS_MAX: u32 = 256;
    /// Uplink ports.
    PORTS_MAX: u32 = 16;
    /// Ports towards VMs of this node.
    VM_PORTS_MAX: u32 = 256;
    /// Inline pairs of a node in role filter: each has two ports.
    INLINE_MAX: u32 = 8;
    /// Edge ports of a node.
    EDGE_PORTS_MAX: u32 = 16;
    /// Circuits of customers at a node at most.
    CIRCUITS_MAX: u32 = 1 << 16;
    /// Classes of lines and VMs that are shaped at most, of a line one, of a VM two. Each has a class of 16 bits, and one that is taken away keeps its class until nothing of it waits.
    SHAPED_MAX: u32 = 1 << 15;
    /// Mirrors of a node at most.
    MIRRORS_MAX: u32 = 256;
    /// VMs of a node that are mirrored at most, each as often as a mirror is of it.
    MIRRORED_MAX: u32 = 1 << 12;
    /// Tags of a frame on an edge port at most.
    EDGE_TAGS_MAX: u32 = 2;
    /// Lines that a drop counter may lie away from its home.
    DROP_PROBES_MAX: u32 = 4;
    /// Bits in a line number of session memory: at most 2^27 lines, 8 GiB.
    SESSION_LINE_BITS: u32 = 27;
    /// Segments of session memory at most.
    SESSION_SEGMENTS_MAX: u32 = 1 << (SESSION_LINE_BITS - SEGMENT_SHIFT);
    /// Slots in a bucket of the session index.
    SESSION_SLOTS: u32 = 14;
    /// Bytes of a packet that an event carries.
    EVENT_BYTES: u32 = 256;
    /// Largest frame, bytes.
    FRAME_BYTES_MAX: u32 = 9216;
}

const _: () = {
    assert!(SEGMENT_BYTES == 4 << 20);
    assert!(SEGMENTS_MAX == 1024);
    assert!(VM_CHUNKS_MAX == 256 && NC_CHUNKS_MAX == 256 && TENANT_CHUNKS_MAX == 256);
    assert!(LINE_BITS + 6 == 32, "a route root packs line, height, simple and generation into 32 bits");
};

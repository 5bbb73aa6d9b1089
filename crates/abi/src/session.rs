// SPDX-License-Identifier: Apache-2.0
//! Layouts of session memory: records of connections, and the index that finds them by either of two keys.
//!
//! Session memory is a flat memory of its own: 64-byte lines, 27-bit line numbers, segments of 4 MiB, as table memory. A
//! segment holds IPv4 records (a line each), IPv6 records (two lines at an even number) or index buckets; the root says
//! which. Line 0 is never used. All words are in host byte order, addresses are numbers (see `layout`).
//!
//! *Keys.* The inner key is what the VM sends: (VNI, protocol, VM address and port, remote address and port). The outer key is
//! what the Internet sends: (protocol, public address and port, remote address and port). For ICMP echo the identifier
//! stands for the VM's and the public port, and the remote port is 0. As words, IPv4:
//! inner (`vni << 40 | proto << 32 | vm`, `remote << 32 | vm_port << 16 | remote_port`),
//! outer (`proto << 32 | public`, `remote << 32 | public_port << 16 | remote_port`); IPv6: first word
//! `vni << 40 | proto << 32 | vm_port << 16 | remote_port` (outer: VNI 0), then the four halves of both addresses.
//! *Pairs.* A session of the filter (SESSION_OWNER_FILTER) has one key for both directions: the words of an inner key in which the
//! lower of both ends (by address, then VNI, then port) stands for the VM, and the VNI of the other end, which lies in bits
//! 40-63 of `outer` above the epoch. Its hash is `hash3(2 | other VNI << 8, w0, w1, salt)`; IPv6:
//! `hash3(hash3(w0, vm_hi, vm_lo, salt) ^ (2 | other VNI << 8), remote_hi, remote_lo, salt)`.
//! *Hashes.* IPv4: inner `hash3(0, w0, w1, salt)`, outer `hash3(1, w0, w1, salt)`. IPv6, both:
//! `hash3(hash3(w0, vm_hi, vm_lo, salt), remote_hi, remote_lo, salt)`.
//! *Places.* The two candidate buckets are `first + bucket_of(hash, n)` and `first + bucket_of(hash << 32, n)`; the tag is
//! the lower 9 bits of `hash ^ hash >> 32`. A slot is `(tag & 31) << 27 | line of the record`; the other four bits of the tag are
//! nibble i of `tags` for slot i. A reader compares tags, then the whole key in the record, and misses a record whose
//! state is 0. While `index_old` is not 0, a key that is not in `index_old` is looked for in `index` too.

use crate::layout::{bits, layouts, CType, Field, Layout};

layouts! {
    SESSION_LAYOUTS;
    /// The root of session memory: the one element of map `tunny_session_root`. The node's tracker writes it.
    SessionRoot: 4096 {
        /// SESSION_MAGIC once the tracker has finished building; engines see no session before.
        magic: u64,
        /// [`layout_hash`](crate::layout_hash) of the writer.
        layout_hash: u64,
        /// Salt of the hashes.
        salt: u64,
        /// The index (SessionBucket): TABLE_REF word.
        index: u64,
        /// The index before, while its entries move to a larger one: TABLE_REF word, 0 = none. It is complete but for
        /// sessions that are newer than `index`.
        index_old: u64,
        /// Room for later versions.
        reserved: [u64; 251],
        /// What each segment holds: SESSION_SEGMENT_*.
        kinds: [u8; 2048],
    }

    /// A bucket of the session index.
    SessionBucket: 64 {
        /// Slots: SESSION_SLOT, 0 = empty; each changes by one store.
        slots: [u32; 14],
        /// Upper four bits of the tag of slot i in bits 4i to 4i + 3; bit 63 is the tracker's lock. Stored before the slot.
        tags: u64,
    }

    /// A session. The tracker writes the first four words; the engines that forward its packets change the others, each
    /// by aligned stores or atomics of its own size. Sequence numbers, acknowledgements and windows move only forward.
    SessionRecord: 64 {
        /// First word of the inner key.
        inner0: u64,
        /// IPv4: second word of the inner key. IPv6: 0.
        inner1: u64,
        /// Public address << 32 | public port << 16 | policy epoch. IPv6: the epoch alone. A pair: other VNI << 40 | epoch.
        outer: u64,
        /// SESSION_STATE word; 0: no session. Stored last when a session begins, zeroed first when it ends.
        state: u64,
        /// When a packet was last taken, in units of 2^SESSION_TIME_SHIFT ns.
        last_seen: u32,
        /// Largest window that the VM offered, as in its headers, before scaling.
        window_out: u16,
        /// Largest window that the remote side offered, before scaling.
        window_in: u16,
        /// Highest sequence number after anything that the VM sent.
        end_out: u32,
        /// Highest acknowledgement that the VM sent.
        ack_out: u32,
        /// Highest sequence number after anything that the remote side sent.
        end_in: u32,
        /// Highest acknowledgement that the remote side sent.
        ack_in: u32,
        /// Packets in bits 0-27, bytes in bits 28-63, of both directions, added by one atomic. When a packet finds a
        /// bit of SESSION_COUNT_SPILL set it goes to the software path, which moves the sum elsewhere.
        count: u64,
    }

    /// Second line of an IPv6 session.
    SessionAddresses: 64 {
        /// Upper half of the VM's address.
        vm_hi: u64,
        /// Lower half.
        vm_lo: u64,
        /// Upper half of the remote address.
        remote_hi: u64,
        /// Lower half.
        remote_lo: u64,
        /// Room for later versions.
        reserved: [u64; 4],
    }
}

bits! {
    SESSION_BITS;
    /// First word of the session root.
    SESSION_MAGIC: u64 = 0x3153_4e59_4e55_5400;
    /// Segment: not used.
    SESSION_SEGMENT_FREE: u8 = 0;
    /// Segment: IPv4 records.
    SESSION_SEGMENT_V4: u8 = 1;
    /// Segment: IPv6 records.
    SESSION_SEGMENT_V6: u8 = 2;
    /// Segment: index buckets.
    SESSION_SEGMENT_INDEX: u8 = 3;

    /// SESSION_SLOT: mask of the record's line.
    SESSION_SLOT_LINE: u32 = (1 << 27) - 1;
    /// SESSION_SLOT: shift of the lower five bits of the tag.
    SESSION_SLOT_TAG_SHIFT: u32 = 27;
    /// Bits of a tag.
    SESSION_TAG_MASK: u32 = 0x1ff;
    /// tags: the tracker changes the bucket.
    SESSION_BUCKET_LOCK: u64 = 1 << 63;

    /// Times in records are CLOCK_MONOTONIC ns >> SESSION_TIME_SHIFT (67 ms).
    SESSION_TIME_SHIFT: u32 = 26;

    /// SESSION_STATE: mask of the state.
    SESSION_STATE_MASK: u64 = 0xff;
    /// State: TCP, SYN seen.
    SESSION_SYN_SENT: u8 = 1;
    /// State: TCP, SYN seen from both sides (simultaneous open).
    SESSION_SYN_BOTH: u8 = 2;
    /// State: TCP, SYN and its SYN-ACK seen.
    SESSION_SYN_RECEIVED: u8 = 3;
    /// State: TCP, handshake done.
    SESSION_ESTABLISHED: u8 = 4;
    /// State: TCP, the VM has sent its FIN.
    SESSION_FIN_OUT: u8 = 5;
    /// State: TCP, the remote side has sent its FIN.
    SESSION_FIN_IN: u8 = 6;
    /// State: UDP, ICMP and others, packets seen from both sides.
    SESSION_PAIRED: u8 = 7;
    /// State: UDP and others, several packets from the side that began, none back. The fast path serves that direction alone.
    SESSION_ONE_WAY: u8 = 8;
    /// State: TCP, FIN seen from both sides, not yet acknowledged.
    SESSION_FIN_BOTH: u8 = 9;
    /// State: TCP, both FINs acknowledged.
    SESSION_TIME_WAIT: u8 = 10;
    /// State: TCP, ended by RST.
    SESSION_RESET: u8 = 11;
    /// State: UDP, ICMP and others, a packet from one side.
    SESSION_ONE_SIDED: u8 = 12;
    /// State: TCP, picked up in the middle, seen from one side.
    SESSION_PICKED_UP: u8 = 13;
    /// First state that the fast path serves (TCP packets with flags ACK or ACK + PSH, ECE and CWR disregarded).
    SESSION_FAST_FIRST: u8 = 4;
    /// Last state that the fast path serves.
    SESSION_FAST_LAST: u8 = 8;

    /// SESSION_STATE: shift of the flags.
    SESSION_FLAGS_SHIFT: u32 = 8;
    /// SESSION_STATE: the record has two lines and IPv6 addresses.
    SESSION_V6: u64 = 1 << 8;
    /// SESSION_STATE: begun by the remote side.
    SESSION_FROM_OUTSIDE: u64 = 1 << 9;
    /// SESSION_STATE: picked up: windows and sequence numbers are not known from the handshake.
    SESSION_LOOSE: u64 = 1 << 10;
    /// SESSION_STATE: a RST came that may or may not have ended it; the fast path leaves it to the software path.
    SESSION_DOUBT: u64 = 1 << 11;
    /// SESSION_STATE: shift of three bits for the owner (who translates: SESSION_OWNER_*).
    SESSION_OWNER_SHIFT: u32 = 12;
    /// Owner: Snat.
    SESSION_OWNER_SNAT: u8 = 0;
    /// Owner: elastic address, one to one.
    SESSION_OWNER_ELASTIC: u8 = 1;
    /// Owner: port forward.
    SESSION_OWNER_FORWARD: u8 = 2;
    /// Owner: nobody, nothing is translated.
    SESSION_OWNER_NONE: u8 = 3;
    /// Owner: the filter. A pair of ends inside, found under one key by the packets of both.
    SESSION_OWNER_FILTER: u8 = 4;
    /// SESSION_STATE: the tracker's lock.
    SESSION_LOCK: u64 = 1 << 15;
    /// SESSION_STATE: shift of the VM's window scale, 4 bits.
    SESSION_SCALE_OUT_SHIFT: u32 = 16;
    /// SESSION_STATE: shift of the remote side's window scale, 4 bits.
    SESSION_SCALE_IN_SHIFT: u32 = 20;
    /// SESSION_STATE: shift of the 8-bit place in the timer wheel.
    SESSION_WHEEL_SHIFT: u32 = 24;
    /// SESSION_STATE: shift of the 32-bit time of its beginning.
    SESSION_START_SHIFT: u32 = 32;

    /// count: shift of the bytes.
    SESSION_COUNT_BYTES_SHIFT: u32 = 28;
    /// count: top bits of packets and bytes.
    SESSION_COUNT_SPILL: u64 = 1 << 63 | 1 << 27;
}

const _: () = {
    use crate::limits::*;
    assert!(SESSION_SEGMENTS_MAX == 2048 && SESSION_LINE_BITS == SESSION_SLOT_TAG_SHIFT && SESSION_SLOTS == 14);
};

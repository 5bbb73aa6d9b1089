// SPDX-License-Identifier: Apache-2.0
//! Layouts of state tables: which connections the filter lets through, as the fast path reads it.
//!
//! A state table is a memory of its own: 64-byte lines in one mmapable BPF array map `tunny_states` (element = line). Lines 0
//! and 1 are the root; the root says where the parts lie. There are three kinds, told by the magic:
//! *exact* has full keys with their states; *compact* registers of 2-bit states (with fingerprints of 0–16 bits) and full keys
//! of connections that collide, with the register that is theirs instead; *digest* buckets of four slots of a 10-bit digest with a
//! 2-bit state, and full keys of connections whose digest another one has.
//!
//! *Keys* are the words of a session's inner key (`session`), of a pair of ends inside, and their hash is theirs. IPv6 keys have a sixth
//! word: 0, or if the ends are in two VPCs the other one's VNI with STATES_PAIR_OTHER; it is xored into the hash of the first three words.
//! IPv4 between two VPCs has such a key too, with the addresses as ::ffff:a.b.c.d and STATES_PAIR_V4 in the sixth word.
//! *Full keys.* Candidate buckets are `bucket_of(hash, n)` and `bucket_of(hash << 32, n)`. IPv4: a bucket is a line of three keys
//! (StatesKeys4). IPv6: two lines with a key each (StatesKey6). A value of 0 is an empty place; otherwise the state, or for
//! compact tables the number of the register + 1.
//! *Registers.* Register `bucket_of(hash, m)`; a word holds as many cells as fit: state in the lower 2 bits, above it the
//! fingerprint: the lower bits of the hash. Their number in a word stands in the root.
//! *Digest slots.* The digest d is the lower 10 bits of the hash. Bucket b is `bucket_of(hash, n)`, the other one
//! `(n + bucket_of(hash1(d, salt), n) - b) mod n`, so that either follows from the other and the digest. Bucket i is three pieces of 16
//! bits at piece 3i. Slots 0–2: `digest << 2 | state` in the lower 12 bits of their piece; slot 3: its lowest, middle and
//! highest four bits in the upper four bits of the three pieces. State 0 is an empty slot.
//! *Reading.* Who moves a key or a digest stores it in its new place, counts `moves_keys` or `moves_digests` up, and clears
//! the old place. A reader whose full-key lookup began at another count, or that found no digest and began at another count, looks again.
//!
//! *Migrate_Tbl* (STATES_SLOT_MIGRATE) is a memory of its own: which prefixes of connections the software path judges, or only counts. Its
//! nodes are those of IPv6 route trees (Inner64, Leaf64), packed, and three trees follow one another by SCOPE_DESCEND values: the first over
//! `VNI << 1 | IPv6`, with the VNI of the lower end; the second over the lower end's address (IPv4: `address << 32 | address of the other end`;
//! IPv6: its upper half), the third over the rest (IPv4: `port << 48 | port of the other end << 32`; IPv6: the lower half). A final value
//! is 0, or the number of the entry's counter + 1 with MIGRATE_AWAY if the software path judges. It is read after the table, and
//! only while STATES_MIGRATE is in the table's `control`. Half of the memory is read while the writer fills the other one; `top` changes
//! by one store, and no half is written again before all have ended that read it.

use crate::layout::{bits, layouts, CType, Field, Layout};

layouts! {
    STATES_LAYOUTS;
    /// The root of a state table: line 0. Whoever makes the table writes it.
    StatesRoot: 64 {
        /// STATES_MAGIC + kind once the table is whole.
        magic: u64,
        /// Salt of the hashes.
        salt: u64,
        /// Which packets go to the agent: bit `8 * state + STATES_KIND_*`.
        control: u64,
        /// Full IPv4 keys (StatesKeys4): TABLE_REF word.
        keys4: u64,
        /// Full IPv6 keys (two StatesKey6 a bucket): TABLE_REF word.
        keys6: u64,
        /// Registers or buckets of digests: first line, number << 32.
        cells: u64,
        /// Compact: bits of a cell; cells in a word << 8; stages << 16. Digest, exact: 0.
        geometry: u64,
        /// [`layout_hash`](crate::layout_hash) of the writer.
        layout_hash: u64,
    }

    /// Line 1, which the writer changes: what moved while readers looked.
    StatesMoves: 64 {
        /// Full keys moved so far.
        moves_keys: u64,
        /// Digests moved so far.
        moves_digests: u64,
        /// Room for later versions.
        reserved: [u64; 6],
    }

    /// The root of Migrate_Tbl: line 0 of its memory.
    StatesMigrate: 64 {
        /// SCOPE_DESCEND value of the tree over VNIs, 0 if there are no entries; first line of the counters << 32.
        top: u64,
        /// Room for later versions.
        reserved: [u64; 7],
    }

    /// Three full IPv4 keys.
    StatesKeys4: 64 {
        /// Keys, two words each; stored before their value.
        keys: [u64; 6],
        /// Values; the fourth is not used.
        values: [u32; 4],
    }

    /// A full IPv6 key.
    StatesKey6: 64 {
        /// The key; stored before the value.
        key: [u64; 6],
        /// Its value.
        value: u64,
        /// Room for later versions.
        reserved: u64,
    }
}

bits! {
    STATES_BITS;
    /// First word of a state table's root, kind in the lowest byte.
    STATES_MAGIC: u64 = 0x3154_5359_4e55_5400;
    /// Kind of table: full keys.
    STATES_EXACT: u8 = 1;
    /// Kind of table: registers of 2-bit states.
    STATES_COMPACT: u8 = 2;
    /// Kind of table: digests.
    STATES_DIGEST: u8 = 3;

    /// State: no such connection.
    STATES_NONE: u8 = 0;
    /// State: the handshake is not over.
    STATES_OPENING: u8 = 1;
    /// State: established.
    STATES_OPEN: u8 = 2;
    /// State: closing, or being asked whether it lives.
    STATES_CLOSING: u8 = 3;
    /// What a reader says that was overtaken by moves again and again: the agent knows.
    STATES_UNSURE: u8 = 4;

    /// Kind of packet: SYN alone.
    STATES_KIND_SYN: u8 = 0;
    /// Kind of packet: SYN and ACK.
    STATES_KIND_SYN_ACK: u8 = 1;
    /// Kind of packet: ACK without SYN, FIN, RST.
    STATES_KIND_ACK: u8 = 2;
    /// Kind of packet: FIN and ACK.
    STATES_KIND_FIN: u8 = 3;
    /// Kind of packet: RST.
    STATES_KIND_RST: u8 = 4;
    /// Kind of packet: of a protocol without connections.
    STATES_KIND_PLAIN: u8 = 5;
    /// Kind of packet: TCP flags that no host sends.
    STATES_KIND_BAD: u8 = 6;

    /// Sixth word of a key: the ends are in two VPCs, the lower 24 bits are the other end's VNI.
    STATES_PAIR_OTHER: u64 = 0x100_0000;
    /// Sixth word of a key: the addresses are of IPv4.
    STATES_PAIR_V4: u64 = 0x200_0000;
    /// Slot of the map `tunny_states`: the table that the fast path reads. Empty: sessions tell the states (exact).
    STATES_SLOT_TABLE: u32 = 0;
    /// Slot of the map `tunny_states`: the agent's records, which no program reads.
    STATES_SLOT_RECORDS: u32 = 1;

    /// Slot of the map `tunny_states`: Migrate_Tbl.
    STATES_SLOT_MIGRATE: u32 = 2;
    /// Slots of the map `tunny_states`.
    STATES_SLOT_COUNT: u32 = 3;
    /// In the root's `control`: Migrate_Tbl has entries.
    STATES_MIGRATE: u64 = 1 << 40;
    /// Value of Migrate_Tbl: the software path judges this connection. Without: it only counts its bytes.
    MIGRATE_AWAY: u32 = 1 << 27;
    /// Value of Migrate_Tbl: number of the counter + 1.
    MIGRATE_COUNTER_MASK: u32 = (1 << 24) - 1;
    /// Entries of Migrate_Tbl at most.
    MIGRATE_ENTRIES_MAX: u32 = 1 << 14;

    /// Times that a reader looks.
    STATES_TRIES: u32 = 4;
    /// Bits of a digest.
    STATES_DIGEST_BITS: u32 = 10;
    /// Digest slots in a bucket.
    STATES_SLOTS: u32 = 4;
    /// Full IPv4 keys in a bucket.
    STATES_KEYS4: u32 = 3;
    /// Full IPv6 keys in a bucket.
    STATES_KEYS6: u32 = 2;
    /// Compact: fingerprint bits at most.
    STATES_FINGERPRINT_MAX: u32 = 16;
}

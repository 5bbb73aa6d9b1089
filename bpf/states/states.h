/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * State tables as the fast path sees them: exact, compact or digest, told by the root's magic. Layouts and hashes are
 * described in crate abi, states.rs; crates/conntrack-compact/src/reader.rs is the same in Rust, and a test in crate xdp compares both.
 */
#ifndef TUNNY_STATES_H
#define TUNNY_STATES_H

#include "memory.h"
#include "keys.h"
#include "compact.h"
#include "digest.h"

/* The state that a table of any kind has for a key. */
static __always_inline __u32 states_look(void *memory, const struct tunny_states_root *root, const struct state_key *k)
{
	__u32 kind = root->magic & 0xff;
	__u32 value = states_keys(memory, k->wide ? root->keys6 : root->keys4, k);

	if (kind == TUNNY_STATES_COMPACT)
		return value ? compact_cell(memory, root, value - 1) & 3 : compact_bucket_at(memory, root, k->hash);
	if (value)
		return value & 3;
	return kind == TUNNY_STATES_DIGEST ? digest_state(memory, root, k->hash) : TUNNY_STATES_NONE;
}

/*
 * 0-3, or TUNNY_STATES_UNSURE if moves overtook this reader again and again, or there is no table. In the upper half which kinds of
 * packets are control packets in this state: bit 32 + kind. Bit 40: Migrate_Tbl has entries. The key's hash is set here.
 */
__noinline __u64 tunny_state(struct state_key *k)
{
	struct tunny_states_root *root;
	struct tunny_states_moves *moves;
	void *memory = states_memory();

	if (!k || !memory)
		return TUNNY_STATES_UNSURE;
	root = states_line(memory, 0);
	moves = states_line(memory, 1);
	if (!root || !moves || (root->magic & ~0xffULL) != TUNNY_STATES_MAGIC)
		return TUNNY_STATES_UNSURE;
	states_hash(k, root->salt);
	/*
	 * Unrolled, and half as often as software tries: of the loop the compiler makes one to whose head an instruction leads back that
	 * is no jump, which Linux 6.1 refuses; four times unrolled it is too much for its verifier. What is unsure is left to the agent.
	 */
#pragma unroll
	for (int i = 0; i < TUNNY_STATES_TRIES / 2; i++) {
		__u64 keys = READ_ONCE(moves->moves_keys), digests = READ_ONCE(moves->moves_digests);
		__u32 state = states_look(memory, root, k);

		if (READ_ONCE(moves->moves_keys) == keys && (state || READ_ONCE(moves->moves_digests) == digests))
			return state | (root->control >> (8 * (state & 3)) & 0xff) << 32 | (root->control & TUNNY_STATES_MIGRATE);
	}
	return TUNNY_STATES_UNSURE;
}

static __always_inline void states_touch(void *memory, __u64 line)
{
	const struct states_line *at = states_line(memory, line);
	__u64 x;

	if (!at)
		return;
	x = READ_ONCE(at->words[0]);
	OPAQUE(x);
}

/*
 * Asks for the lines in which a table looks for the IPv4 key of two ends in one VPC. 0: there is no table. Wrong words cost time and
 * nothing else.
 */
__noinline int tunny_state_prefetch(__u64 w0, __u64 w1)
{
	void *memory = states_memory();
	struct tunny_states_root *root;
	__u64 hash, ref;
	__u32 n, at, per_word;

	if (!memory)
		return 0;
	root = states_line(memory, 0);
	if (!root || (root->magic & ~0xffULL) != TUNNY_STATES_MAGIC)
		return 1;
	hash = tunny_hash3(0, w0, w1, root->salt);
	n = root->cells >> 32;
	at = tunny_bucket_of(hash, n);
	per_word = root->geometry >> 8 & 0xff;
	if ((root->magic & 0xff) == TUNNY_STATES_DIGEST) {
		__u32 digest = hash & ((1 << TUNNY_STATES_DIGEST_BITS) - 1);
		__u64 other = (__u64)n + tunny_bucket_of(tunny_hash1(digest, root->salt), n) - at;

		other = other >= n ? other - n : other;
		states_touch(memory, (__u32)root->cells + 3ULL * at / TUNNY_PIECES_IN_LINE);
		states_touch(memory, (__u32)root->cells + 3ULL * other / TUNNY_PIECES_IN_LINE);
	} else if ((root->magic & 0xff) == TUNNY_STATES_COMPACT && per_word) {
		states_touch(memory, (__u32)root->cells + (at / per_word >> 3));
	}
	ref = root->keys4;
	n = ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT;
	if (n) {
		states_touch(memory, (__u32)ref + tunny_bucket_of(hash, n));
		states_touch(memory, (__u32)ref + tunny_bucket_of(hash << 32, n));
	}
	return 1;
}

enum states_verdict { STATES_ACCEPT, STATES_DROP, STATES_AGENT };

/* Kind of a TCP packet with these flags. */
static __always_inline __u32 states_kind(__u32 flags)
{
	switch (flags & 0x17) {
	case 0x02:
		return TUNNY_STATES_KIND_SYN;
	case 0x12:
		return TUNNY_STATES_KIND_SYN_ACK;
	case 0x10:
		return TUNNY_STATES_KIND_ACK;
	case 0x11:
		return TUNNY_STATES_KIND_FIN;
	case 0x04:
	case 0x14:
		return TUNNY_STATES_KIND_RST;
	}
	return TUNNY_STATES_KIND_BAD;
}

/* What becomes of a packet of this kind when the table says this: see tunny_state. */
static __always_inline enum states_verdict states_judge(__u64 said, __u32 kind)
{
	__u32 state = said;

	if (kind >= TUNNY_STATES_KIND_BAD)
		return STATES_DROP;
	if (state > TUNNY_STATES_CLOSING || (said >> (32 + (kind & 7)) & 1))
		return STATES_AGENT;
	if (state == TUNNY_STATES_OPEN && (kind == TUNNY_STATES_KIND_ACK || kind == TUNNY_STATES_KIND_PLAIN))
		return STATES_ACCEPT;
	return STATES_DROP;
}

#endif

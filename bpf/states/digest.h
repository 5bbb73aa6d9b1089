/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Buckets of four digests of 10 bits with 2-bit states, 48 bits each: three pieces of 16 bits, see crate abi, states.rs. */
#ifndef TUNNY_STATES_DIGEST_H
#define TUNNY_STATES_DIGEST_H

#include "memory.h"

#define TUNNY_PIECES_IN_LINE (TUNNY_LINE_BYTES / 2)

static __always_inline __u32 digest_piece(void *memory, const struct tunny_states_root *root, __u64 piece)
{
	__u16 *line = states_line(memory, (__u32)root->cells + piece / TUNNY_PIECES_IN_LINE);

	return line ? READ_ONCE(line[piece & (TUNNY_PIECES_IN_LINE - 1)]) : 0;
}

/* State of the slot if it is in use and has this digest. */
static __always_inline __u32 digest_slot(__u32 slot, __u32 digest)
{
	return (slot & 0xfff) >> 2 == digest ? slot & 3 : 0;
}

static __always_inline __u32 digest_in(void *memory, const struct tunny_states_root *root, __u32 bucket, __u32 digest)
{
	__u64 at = 3ULL * bucket;
	/* In this order: slot 3 is spread over all three, and its state, in the first one, is stored last. */
	__u32 a = digest_piece(memory, root, at), b = digest_piece(memory, root, at + 1), c = digest_piece(memory, root, at + 2);
	__u32 state = digest_slot(a, digest);

	if (!state)
		state = digest_slot(b, digest);
	if (!state)
		state = digest_slot(c, digest);
	if (!state)
		state = digest_slot(a >> 12 | b >> 12 << 4 | c >> 12 << 8, digest);
	return state;
}

/* The state under the digest of a hash, in either of its buckets. */
static __always_inline __u32 digest_state(void *memory, const struct tunny_states_root *root, __u64 hash)
{
	__u32 n = root->cells >> 32, digest = hash & ((1 << TUNNY_STATES_DIGEST_BITS) - 1);
	__u32 bucket = tunny_bucket_of(hash, n), state = digest_in(memory, root, bucket, digest);
	__u64 other = (__u64)n + tunny_bucket_of(tunny_hash1(digest, root->salt), n) - bucket;

	return state ? state : digest_in(memory, root, other >= n ? other - n : other, digest);
}

#endif

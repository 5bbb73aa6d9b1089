/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Reg_Tbl of the paper: registers of 2-bit states with 0-16 bits of fingerprint. Col_Tbl is in keys.h. */
#ifndef TUNNY_STATES_COMPACT_H
#define TUNNY_STATES_COMPACT_H

#include "memory.h"

/* Register `at`: state, above it the fingerprint. 0 if there is none. */
static __always_inline __u32 compact_cell(void *memory, const struct tunny_states_root *root, __u32 at)
{
	__u32 bits = root->geometry & 0xff, per_word = root->geometry >> 8 & 0xff, word;
	struct states_line *line;

	if (at >= root->cells >> 32 || !per_word)
		return 0;
	word = at / per_word;
	line = states_line(memory, (__u32)root->cells + (word >> 3));
	if (!line)
		return 0;
	return READ_ONCE(line->words[word & 7]) >> (at % per_word * bits & 63) & ((1U << (bits & 31)) - 1);
}

/* The state in the register that a hash names, if the fingerprint is that of the hash. */
static __always_inline __u32 compact_bucket_at(void *memory, const struct tunny_states_root *root, __u64 hash)
{
	__u32 cell = compact_cell(memory, root, tunny_bucket_of(hash, root->cells >> 32));
	__u32 mask = (1U << (root->geometry - 2 & 31)) - 1;

	return cell >> 2 == ((__u32)hash & mask) ? cell & 3 : TUNNY_STATES_NONE;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memory of a state table: one mmapable array of lines, and the key that is looked for. The verifier inlines a lookup
 * into five instructions. A line that does not exist reads as one that is empty.
 */
#ifndef TUNNY_STATES_MEMORY_H
#define TUNNY_STATES_MEMORY_H

#include "../tables/memory.h"

struct states_line {
	__u64 words[8];
};

/* The number of lines is set by whoever loads the object. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct states_line);
} tunny_states SEC(".maps");

/* A session's inner key: IPv4 has two words. */
struct state_key {
	__u64 w[5];
	__u64 hash;
	__u64 v6;
};

static __always_inline void *states_line(__u32 line)
{
	return bpf_map_lookup_elem(&tunny_states, &line);
}

static __always_inline void states_hash(struct state_key *k, __u64 salt)
{
	if (k->v6)
		k->hash = tunny_hash3(tunny_hash3(k->w[0], k->w[1], k->w[2], salt), k->w[3], k->w[4], salt);
	else
		k->hash = tunny_hash3(0, k->w[0], k->w[1], salt);
}

#endif

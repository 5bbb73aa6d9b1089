/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The memories of state tables, each an mmapable array of lines of its own size, and the key that is looked for. Slot
 * TUNNY_STATES_SLOT_TABLE is the table that is read here: whoever changes its kind or size fills a new memory and enters it by one
 * store. An empty slot: there is none, and sessions tell the states. A line that does not exist reads as one that is empty.
 */
#ifndef TUNNY_STATES_MEMORY_H
#define TUNNY_STATES_MEMORY_H

#include "../tables/memory.h"

struct states_line {
	__u64 words[8];
};

/* Memories of any number of lines fit (BPF_F_INNER_MAP). */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, TUNNY_STATES_SLOT_COUNT);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 2);
		__uint(map_flags, BPF_F_MMAPABLE | BPF_F_INNER_MAP);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, TUNNY_LINE_BYTES);
	});
} tunny_states SEC(".maps");

/* A connection's key: IPv4 in one VPC has two words, any other (wide) six. */
struct state_key {
	__u64 w[6];
	__u64 hash;
	__u64 wide;
};

/* The memory of the table, NULL if there is none. */
static __always_inline void *states_memory(void)
{
	__u32 slot = TUNNY_STATES_SLOT_TABLE;

	return map_value(&tunny_states, slot);
}

static __always_inline void *states_line(void *memory, __u32 line)
{
	return map_value(memory, line);
}

static __always_inline void states_hash(struct state_key *k, __u64 salt)
{
	if (k->wide)
		k->hash = tunny_hash3(tunny_hash3(k->w[0], k->w[1], k->w[2], salt) ^ k->w[5], k->w[3], k->w[4], salt);
	else
		k->hash = tunny_hash3(0, k->w[0], k->w[1], salt);
}

#endif

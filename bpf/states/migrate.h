/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Migrate_Tbl: which prefixes of connections the software path judges, with a counter of bytes for each entry. Its layout is described in
 * crate abi, states.rs; crates/conntrack-compact/src/migrate_tbl.rs is the same in Rust. Asked only while the state table's root says that there are entries.
 */
#ifndef TUNNY_MIGRATE_H
#define TUNNY_MIGRATE_H

#include "memory.h"
#include "../tables/lpm.h"

static __always_inline void *migrate_memory(void)
{
	__u32 slot = TUNNY_STATES_SLOT_MIGRATE;

	return map_value(&tunny_states, slot);
}

/* Value of a key in the tree that a SCOPE_DESCEND value leads to. Global, so that its loop is verified once. */
__noinline __u32 tunny_migrate_walk(__u32 value, __u64 key)
{
	__u32 line = value & TUNNY_VALUE_ARG_MASK, levels = (value >> TUNNY_VALUE_SCOPE_SHIFT) - TUNNY_SCOPE_DESCEND + 1;
	void *memory = migrate_memory();

	return memory ? walk64(memory, line, levels, key) : 0;
}

/* Halves of what the prefixes of a connection are about: both addresses and both ports, or the lower end's address of IPv6. */
static __always_inline __u64 migrate_high(const struct state_key *k)
{
	if (!k->wide)
		return k->w[0] << 32 | k->w[1] >> 32;
	return k->w[5] & TUNNY_STATES_PAIR_V4 ? k->w[2] << 32 | (__u32)k->w[4] : k->w[1];
}

static __always_inline __u64 migrate_low(const struct state_key *k)
{
	if (!k->wide)
		return k->w[1] << 32;
	return k->w[5] & TUNNY_STATES_PAIR_V4 ? k->w[0] << 32 : k->w[2];
}

static __always_inline int migrate_descends(__u32 value)
{
	return value >> TUNNY_VALUE_SCOPE_SHIFT >= TUNNY_SCOPE_DESCEND;
}

/*
 * Is the connection the software path's? Else bytes are counted for the entry that covers it. Of what the software path judges it
 * counts the bytes itself.
 */
static __always_inline int migrated(const struct state_key *k, __u32 bytes)
{
	__u32 v6 = k->wide && !(k->w[5] & TUNNY_STATES_PAIR_V4), value, at;
	struct tunny_states_migrate *root;
	void *memory = migrate_memory();
	struct states_line *counters;
	__u64 top;

	root = memory ? states_line(memory, 0) : NULL;
	if (!root)
		return 0;
	top = READ_ONCE(root->top);
	value = top;
	if (migrate_descends(value))
		value = tunny_migrate_walk(value, k->w[0] >> 40 << 1 | v6);
	if (migrate_descends(value))
		value = tunny_migrate_walk(value, migrate_high(k));
	if (migrate_descends(value))
		value = tunny_migrate_walk(value, migrate_low(k));
	if (!value || value >> TUNNY_VALUE_SCOPE_SHIFT)
		return 0;
	if (value & TUNNY_MIGRATE_AWAY)
		return 1;
	at = (value & TUNNY_MIGRATE_COUNTER_MASK) - 1;
	counters = bytes ? states_line(memory, (top >> 32) + (at >> 3)) : NULL;
	if (counters && !tunny_probes.only)
		__sync_fetch_and_add(&counters->words[at & 7], bytes);
	return 0;
}

#endif

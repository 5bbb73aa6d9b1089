/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Counters. Statistics of a slot belong to one CPU, which adds by plain stores: XDP runs with softirqs off and is never
 * interrupted by itself. A VM's cell is shared by all engines and takes one atomic. Drops by (VNI, reason) are sparse:
 * a fixed open-addressed table whose entries are claimed by compare-and-swap.
 */
#ifndef TUNNY_COUNTER_H
#define TUNNY_COUNTER_H

#include "memory.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TUNNY_SLOTS_MAX);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct tunny_stats);
} tunny_stats SEC(".maps");

/* Counts a dropped packet for a VNI. Returns 0, or 1 if the table had no room. */
__noinline int tunny_count_drop(__u64 ref, __u64 salt, __u32 vni, __u32 reason, __u32 packets)
{
	__u64 key = (__u64)vni << 16 | (reason & 0xff) << 8 | 1;
	__u32 buckets = ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT;
	__u32 at = tunny_bucket_of(tunny_hash1(key, salt), buckets);

	if (!buckets)
		return 1;
	for (int i = 0; i < TUNNY_DROP_PROBES_MAX; i++) {
		struct tunny_drop_bucket *b = line_at((__u32)ref + at);

		if (!b)
			return 1;
		for (int j = 0; j < 8; j += 2) {
			__u64 have = READ_ONCE(b->pairs[j]);

			if (!have) {
				have = __sync_val_compare_and_swap(&b->pairs[j], 0, key);
				if (!have)
					have = key;
			}
			if (have == key) {
				__sync_fetch_and_add(&b->pairs[j + 1], packets);
				return 0;
			}
		}
		if (++at >= buckets)
			at = 0;
	}
	return 1;
}

/* Line of the cells of a group of eight VM ids, 0 if there are none. */
static __always_inline __u32 cell_line(const struct tunny_root *root, __u32 group)
{
	__u32 first = root->vm_chunks[group >> (TUNNY_VM_CHUNK_SHIFT - 3) & (TUNNY_VM_CHUNKS_MAX - 1)];

	return first ? first + (group & ((1U << (TUNNY_VM_CHUNK_SHIFT - 3)) - 1)) : 0;
}

/*
 * Line of the counting words of a group of eight tenants for a slot, 0 if there is none. The words of one slot lie together, eight tenants a
 * line: no two CPUs write the same line, and those of 100,000 tenants are less than a megabyte for each CPU.
 */
static __always_inline __u32 tenant_words_line(const struct tunny_root *root, __u32 group, __u32 slot)
{
	__u32 first = root->tenant_chunks[group >> (TUNNY_TENANT_CHUNK_SHIFT - 3) & (TUNNY_TENANT_CHUNKS_MAX - 1)];
	__u32 words = root->tenant_words;

	if (unlikely(slot >= words))
		slot = words ? slot % words : 0;
	return first ? first + (2U << TUNNY_TENANT_CHUNK_SHIFT) + (slot << (TUNNY_TENANT_CHUNK_SHIFT - 3)) +
			       (group & ((1U << (TUNNY_TENANT_CHUNK_SHIFT - 3)) - 1)) : 0;
}

/* Moves the upper part of a full counting word into its totals. Of several CPUs that try, each bit is carried by one. */
__noinline int tunny_carry(__u32 line, __u32 totals_line, __u32 words)
{
	__u64 *cells = line_at(line), *totals = line_at(totals_line), old;

	if (!cells || !totals)
		return -1;
	old = __sync_fetch_and_and(&cells[words & 7], ~TUNNY_CELL_SPILL_MASK);
	__sync_fetch_and_add(&totals[words >> 3 & 7], (old >> 63) << TUNNY_CELL_CARRY_SHIFT |
			     (old >> (TUNNY_CELL_PACKETS_SHIFT - 1) & 1));
	return 0;
}

#endif

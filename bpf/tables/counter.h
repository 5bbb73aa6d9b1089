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
__noinline int tunny_count_drop(__u64 ref, __u64 salt, __u32 vni, __u32 reason)
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
				__sync_fetch_and_add(&b->pairs[j + 1], 1);
				return 0;
			}
		}
		if (++at >= buckets)
			at = 0;
	}
	return 1;
}

/* Line of the cells of a VM id, 0 if there are none. */
static __always_inline __u32 cell_line(const struct tunny_root *root, __u32 id)
{
	__u32 first = root->vm_chunks[id >> TUNNY_VM_CHUNK_SHIFT & (TUNNY_VM_CHUNKS_MAX - 1)];

	if (!first)
		return 0;
	return first + (id & ((1U << TUNNY_VM_CHUNK_SHIFT) - 1)) / 8 * 3;
}

/* Moves a full cell word into the totals, which lie one line (cells 0-3) or two lines (cells 4-7) behind. */
__noinline int tunny_spill_cell(__u32 line, __u32 cell)
{
	struct tunny_vm_cells *packed = line_at(line);
	__u64 *totals = line_at(line + 1 + (cell >> 2 & 1));
	__u64 word;

	if (!packed || !totals)
		return -1;
	word = __sync_lock_test_and_set(&packed->packed[cell & 7], 0);
	totals += (cell & 3) * 2;
	__sync_fetch_and_add(&totals[0], word >> TUNNY_CELL_PACKETS_SHIFT);
	__sync_fetch_and_add(&totals[1], word & ((1ULL << TUNNY_CELL_PACKETS_SHIFT) - 1));
	return 0;
}

#endif

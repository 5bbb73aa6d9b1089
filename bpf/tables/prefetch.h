/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Prefetches lines. BPF has no instruction for it, so a word of each line is loaded and forgotten; an out-of-order CPU goes on with what
 * follows, and several cache misses cost as much as one.
 */
#ifndef TUNNY_PREFETCH_H
#define TUNNY_PREFETCH_H

#include "counter.h"
#include "exact.h"

static __always_inline void touch(const void *line)
{
	__u64 x = *(const volatile __u64 *)line;

	OPAQUE(x);
}

/*
 * Counting words are prefetched and forgotten; who counts works their place out again. A pointer that may be NULL, kept to
 * the end of the program, would double what the verifier must look at.
 */
static __always_inline void touch_line(const void *line)
{
	if (line)
		touch(line);
}

static __always_inline void *cells_at(const struct tunny_root *root, __u32 group)
{
	__u32 line = cell_line(root, group);

	return line ? line_at(line) : NULL;
}

static __always_inline void *counters_at(const struct tunny_root *root, __u32 group, __u32 slot)
{
	__u32 line = tenant_words_line(root, group, slot);

	return line ? line_at(line) : NULL;
}

/*
 * Asks for what a packet to an IPv4 address of a VPC needs that it did not come from: the VPC's entry and counting words (if
 * `slot` is one), the VM's entry and cell.
 */
__noinline int tunny_prefetch(__u32 vni, __u32 addr, __u32 slot)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 tenant, vm;

	if (!root)
		return 0;
	tenant = tenant_hash(vni, root->salt);
	vm = tunny_hash1(vm4_key(vni, addr), root->salt);
	touch_line(tenant_bucket_at(root, tenant));
	touch_line(line_at(bucket_line(root->vm4, vm)));
	touch_line(cells_at(root, tunny_bucket_of(vm, root->vm_groups)));
	if (slot < TUNNY_SLOTS_MAX)
		touch_line(counters_at(root, tunny_bucket_of(tenant, root->tenant_groups), slot));
	return 1;
}

#endif

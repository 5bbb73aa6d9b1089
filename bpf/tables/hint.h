/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Asks for lines before they are needed. BPF has no prefetch, so a word of each line is loaded and forgotten; an out-of-order
 * CPU goes on with what follows, and several cache misses cost as much as one. Two rounds:
 *
 * first_lines, once the outer headers are parsed: the home buckets of the packet's VNI, of its sender, and of its
 * destination in its own VPC. They depend on the packet alone.
 *
 * second_lines, before the first bucket is looked at in earnest: what those buckets lead to. The tenant's record and its
 * counters; and, if the destination is a settled entry of the own VPC, its NC and its cell. Which of it is true is
 * decided later, in the order of the stages: the entry counts only if its key word is still the same after the
 * tenant's roots have been read, so the packet sees one state of its VPC.
 */
#ifndef TUNNY_HINT_H
#define TUNNY_HINT_H

#include "../stages/packet.h"

static __always_inline void touch(const void *line)
{
	__u64 x = *(const volatile __u64 *)line;

	OPAQUE(x);
}

static __always_inline int first_lines(struct packet *p, __u32 inner_dst)
{
	struct tunny_root *root = p->root;
	__u64 salt = root->salt;
	__u64 member = (__u64)p->vni << 40 | p->outer_src_lo << 8 | TUNNY_MEMBER_V4;

	/* The longest way first: bucket, record, then what the record allows. */
	p->tenant_bucket =
		line_at(home_line(root->tenants, tunny_hash1((__u64)p->vni << TUNNY_WORD_TENANT_SHIFT, salt)));
	if (!p->tenant_bucket)
		return DROP_TABLE_FAULT;
	touch(p->tenant_bucket);
	p->own_key = vm4_key(p->vni, inner_dst);
	p->vm_line = home_line(root->vm4, tunny_hash1(p->own_key, salt));
	p->vm_bucket = line_at(p->vm_line);
	if (!p->vm_bucket)
		return DROP_TABLE_FAULT;
	touch(p->vm_bucket);
	p->member_bucket = line_at(home_line(root->members, tunny_hash1(member, salt)));
	if (!p->member_bucket)
		return DROP_TABLE_FAULT;
	touch(p->member_bucket);
	return GO;
}

/* Address of an NC's record by its id, NULL if there is none. */
static __always_inline struct tunny_nc_record *nc_record(struct packet *p, struct near *near)
{
	__u32 chunk = p->root->nc_chunks[p->vm.nc >> TUNNY_NC_CHUNK_SHIFT & (TUNNY_NC_CHUNKS_MAX - 1)];

	if (!chunk)
		return NULL;
	return line_near(near, chunk + (p->vm.nc & ((1U << TUNNY_NC_CHUNK_SHIFT) - 1)));
}

/* Asks for the cell of p->vm. */
static __always_inline void cells_of_vm(struct packet *p)
{
	p->cell_line = cell_line(p->root, p->vm.id);
	p->cells = p->cell_line ? line_at(p->cell_line) : NULL;
	if (p->cells)
		touch(p->cells);
}

/* Returns the line of the tenant's record, 0 if its VNI is not in its home bucket. */
static __always_inline __u32 second_lines(struct packet *p)
{
	struct near near = {};
	__u32 line = tenant_match(p->tenant_bucket, p->vni);

	p->tenant = line_near(&near, line);
	p->counters = line_near(&near, line + TUNNY_TENANT_COUNTERS_LINE + p->slot / 4);
	if (p->tenant)
		touch(p->tenant);
	if (p->counters)
		touch(p->counters);
	p->own = p->inner_v6 ? 0 : vm4_match(p->vm_bucket, p->own_key | TUNNY_KEY_VALID);
	if (p->own) {
		vm4_read(p->vm_bucket, p->own - 1, &p->vm);
		cells_of_vm(p);
	}
	return line;
}

#endif

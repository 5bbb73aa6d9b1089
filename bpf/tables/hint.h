/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Asks for the lines that the packet alone names, before anything needs them: the home buckets of its VNI, of its
 * sender, and of its destination in its own VPC. BPF has no prefetch, so a word of each line is loaded and forgotten: an
 * out-of-order CPU goes on with the checks of the inner packet, and three cache misses cost as much as one.
 */
#ifndef TUNNY_HINT_H
#define TUNNY_HINT_H

#include "../stages/packet.h"

static __always_inline void touch(const void *line)
{
	__u64 x = *(const volatile __u64 *)line;

	OPAQUE(x);
}

static __always_inline int hint_tables(struct packet *p, __u32 inner_dst)
{
	struct tunny_root *root = p->root;
	__u64 salt = root->salt;
	__u64 member = (__u64)p->vni << 40 | p->outer_src_lo << 8 | TUNNY_MEMBER_V4;
	__u64 key = vm4_key(p->vni, inner_dst) | TUNNY_KEY_VALID;

	p->tenant_bucket = line_at(home_line(root->tenants, tunny_hash1((__u64)p->vni << TUNNY_WORD_TENANT_SHIFT, salt)));
	p->vm_bucket = line_at(home_line(root->vm4, tunny_hash1(key & ~TUNNY_KEY_STATE_MASK, salt)));
	p->member_bucket = line_at(home_line(root->members, tunny_hash1(member, salt)));
	if (!p->tenant_bucket || !p->vm_bucket || !p->member_bucket)
		return DROP_TABLE_FAULT;
	touch(p->tenant_bucket);
	touch(p->vm_bucket);
	touch(p->member_bucket);
	return GO;
}

#endif

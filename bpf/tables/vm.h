/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The VM-NC table as a walk from VPC to VPC reads it. */
#ifndef TUNNY_VM_H
#define TUNNY_VM_H

#include "exact.h"

/* What the walk from VPC to VPC knows. In memory: tunny_walk is a global function, verified once for all families. */
struct walk {
	__u64 dst_hi;
	__u64 dst_lo;		/* or the IPv4 address */
	__u64 roots;		/* of the VPC at hand */
	__u64 gateway_mac;	/* of the VPC at hand */
	__u64 policy;		/* of the VPC at hand */
	__u64 versions;		/* of the VPC at hand and the destination in it, if it is a peer's */
	__u32 vni;		/* of the VPC at hand */
	__u32 hops;		/* 0: the VPC at hand is the ingress VPC */
	__u32 own_missed;	/* the destination's bucket in the ingress VPC had no stable entry of it */
	__u32 own_rest;		/* then: where the search goes on, 0: nowhere */
	__u32 v6;
	__u32 found;		/* the VPC at hand is the destination's, and the VM is `vm` */
	__u32 line;		/* the number of the line where it ended, if it did at one */
	struct vm vm;
	struct key6 key6;	/* of a lookup; here, for the stack has no room for it */
};

/* Not on the stack: 6.1 allows a chain of calls 512 bytes together. XDP never interrupts itself on a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct walk);
} tunny_walks SEC(".maps");

/* Begins a walk at an address in a VPC. */
static __always_inline void walk_to(struct walk *w, __u32 vni, __u32 v6, __u64 hi, __u64 lo)
{
	w->hops = 0;
	w->found = 0;
	w->versions = 0;
	w->own_missed = 0;
	w->vni = vni;
	w->v6 = v6;
	w->dst_hi = hi;
	w->dst_lo = lo;
}

static __always_inline int find_vm4(struct tunny_root *root, struct walk *w)
{
	__u64 found, marks, key = vm4_key(w->vni, w->dst_lo);
	struct tunny_vm4_bucket *b;
	__u32 at, line = w->own_rest;

	if (!w->own_missed || w->hops) {
		line = bucket_line(root->vm4, tunny_hash1(key, root->salt));
		b = line_at(line);
		if (!b)
			return 0;
		at = vm4_match(b, key | TUNNY_KEY_VALID, &marks);
		if (likely(at)) {
			vm4_read(b, at - 1, &w->vm);
			return 1;
		}
		line = vm4_rest(b, line, marks);
	}
	if (!line)
		return 0;
	found = tunny_vm4_chain(line, key, generation_of(w->roots));
	if (!found)
		return 0;
	b = line_at(found >> 2);
	if (!b)
		return 0;
	vm4_read(b, found & 3, &w->vm);
	return 1;
}

static __always_inline int find_vm6(struct tunny_root *root, struct walk *w)
{
	__u64 found;

	w->key6.hi = w->dst_hi;
	w->key6.lo = w->dst_lo;
	w->key6.vni = w->vni;
	w->key6.generation = generation_of(w->roots);
	found = tunny_vm6_chain(root->vm6, root->salt, &w->key6);

	return found && !vm6_read(found, &w->vm);
}

/* Looks the destination up in the VM-NC table of the VPC at hand, in its generation. */
static __always_inline int find_vm(struct tunny_root *root, struct walk *w)
{
	return w->v6 ? find_vm6(root, w) : find_vm4(root, w);
}

#endif

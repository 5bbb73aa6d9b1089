/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * route: VXLAN routing table, (VNI, inner destination) to scope, with peer recursion.
 *
 * A VPC whose route half says ROOT_SIMPLE has no other scope inside its local routes and no VM outside them, so a
 * visible VM-NC entry proves that the route is local and the tree is not walked. `found` then names the entry.
 */
#ifndef TUNNY_ROUTE_H
#define TUNNY_ROUTE_H

#include "packet.h"
#include "../tables/lpm.h"

/* Who may owe an ICMP error: the software path decides. */
static __always_inline int icmp_or(struct packet *p, int reason)
{
	return p->options & TUNNY_OPT_ICMP ? PUNT + PUNT_ICMP_DUE : reason;
}

/*
 * The entry that second_lines read is settled if its key word still says so: the roots were read in between, so it
 * belongs to the state of the VPC that they describe.
 */
static __always_inline int own_entry_holds(const struct packet *p)
{
	__u64 at = (p->own - 1) * 8;

	OPAQUE(at);
	if (at > 16)
		return 0;
	return *(volatile __u64 *)((void *)p->vm_bucket->keys + at) == (p->own_key | TUNNY_KEY_VALID);
}

/* The line in which a search of a bucket that lacks a settled entry goes on: the next, or the same if a commit is under way. */
static __always_inline __u32 vm4_rest(const struct tunny_vm4_bucket *b, __u32 line)
{
	__u64 marks = READ_ONCE(b->keys[0]) | READ_ONCE(b->keys[1]) | READ_ONCE(b->keys[2]);

	return unlikely(marks & (TUNNY_KEY_ADDING | TUNNY_KEY_DYING)) ? line : READ_ONCE(b->next);
}

/* Looks the destination up in the VM-NC table of VPC `to_vni` in its generation, and reads it into p->vm. 0: not found. */
static __always_inline int find_vm4(struct packet *p, int own)
{
	struct tunny_root *root = p->root;
	__u64 found, key = p->own_key;
	struct tunny_vm4_bucket *b = p->vm_bucket;
	__u32 at, line = p->vm_line;

	if (!own) {
		key = vm4_key(p->to_vni, p->dst_lo);
		line = home_line(root->vm4, tunny_hash1(key, root->salt));
		b = line_at(line);
		if (!b)
			return 0;
		at = vm4_match(b, key | TUNNY_KEY_VALID);
		if (likely(at)) {
			vm4_read(b, at - 1, &p->vm);
			cells_of_vm(p);
			return 1;
		}
	}
	line = vm4_rest(b, line);
	if (!line)
		return 0;
	found = tunny_vm4_chain(line, key, generation_of(p->roots));
	if (!found)
		return 0;
	b = line_at(found >> 2);
	if (!b)
		return 0;
	vm4_read(b, found & 3, &p->vm);
	cells_of_vm(p);
	return 1;
}

static __always_inline int find_vm6(struct packet *p)
{
	struct key6 key = {
		.hi = p->dst_hi, .lo = p->dst_lo, .vni = p->to_vni, .generation = generation_of(p->roots),
	};
	__u64 found = tunny_vm6_chain(p->root->vm6, p->root->salt, &key);

	if (!found || vm6_read(found, &p->vm))
		return 0;
	cells_of_vm(p);
	return 1;
}

/* `own`: in the packet's own VPC, whose home bucket is at hand and lacks a settled entry. */
static __always_inline int find_vm(struct packet *p, int own)
{
	return p->inner_v6 ? find_vm6(p) : find_vm4(p, own);
}

static __always_inline __u32 route_value(struct packet *p)
{
	if (p->inner_v6)
		return route128(p->roots >> 32, p->dst_hi, p->dst_lo);
	return tunny_route32(p->roots, p->dst_lo);
}

/* One VPC of the way. GO: the destination is here; ROUTE_ON: p->tenant is the next VPC; else the packet's end. */
#define ROUTE_ON -1
static __always_inline int route_in(struct packet *p, int own, int last)
{
	__u32 root = p->inner_v6 ? p->roots >> 32 : p->roots;
	__u32 value, scope;
	__u64 ident;

	p->vm_found = root & TUNNY_ROOT_SIMPLE ? find_vm(p, own) : 0;
	if (p->vm_found)
		return GO;
	value = route_value(p);
	scope = value >> TUNNY_VALUE_SCOPE_SHIFT;
	if (scope == TUNNY_SCOPE_PEER) {
		if (last)
			return DROP_ROUTE_PEER_LOOP;
		p->tenant = line_at(value & TUNNY_VALUE_ARG_MASK);
		if (!p->tenant)
			return DROP_ROUTE_PEER_GONE;
		ident = READ_ONCE(p->tenant->ident);
		if (!(ident & TUNNY_TENANT_VALID))
			return DROP_ROUTE_PEER_GONE;
		p->to_vni = ident & 0xffffff;
		p->roots = READ_ONCE(p->tenant->roots);
		return ROUTE_ON;
	}
	if (scope == TUNNY_SCOPE_LOCAL) {
		p->vm_found = root & TUNNY_ROOT_SIMPLE ? 0 : find_vm(p, 0);
		return GO;
	}
	if (scope == TUNNY_SCOPE_NONE)
		return icmp_or(p, DROP_ROUTE_NONE);
	return scope == TUNNY_SCOPE_BLACKHOLE ? DROP_ROUTE_BLACKHOLE :
	       scope == TUNNY_SCOPE_INTERNET ? DROP_SCOPE_INTERNET :
	       scope == TUNNY_SCOPE_LINE ? DROP_SCOPE_LINE :
	       scope == TUNNY_SCOPE_REGION ? DROP_SCOPE_REGION : DROP_TABLE_FAULT;
}

static __always_inline int route(struct packet *p)
{
	int end;

	if (likely(p->own && p->roots & TUNNY_ROOT_SIMPLE && own_entry_holds(p))) {
		p->vm_found = 1;
		return GO;
	}
	/* An entry that changed under our eyes is looked up anew. */
	end = route_in(p, !p->own, 0);
#pragma clang loop unroll(disable)
	for (int hop = 1; hop <= TUNNY_PEER_HOPS_MAX && end == ROUTE_ON; hop++)
		end = route_in(p, 0, hop == TUNNY_PEER_HOPS_MAX);
	return end;
}

#endif

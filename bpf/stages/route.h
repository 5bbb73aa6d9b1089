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

/* Looks the destination up in the VM-NC table of VPC `to_vni` in its generation, and reads it into p->vm. 0: not found. */
static __always_inline int find_vm4(struct packet *p)
{
	struct tunny_root *root = p->root;
	__u64 key = vm4_key(p->to_vni, p->dst_lo);
	__u32 line = home_line(root->vm4, tunny_hash1(key, root->salt));
	struct tunny_vm4_bucket *b = line_at(line);
	__u64 found;
	__u32 at;

	if (!b)
		return 0;
	at = vm4_match(b, key | TUNNY_KEY_VALID);
	if (likely(at)) {
		vm4_read(b, at - 1, &p->vm);
		cells_of_vm(p);
		return 1;
	}
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

static __always_inline int find_vm(struct packet *p)
{
	return p->inner_v6 ? find_vm6(p) : find_vm4(p);
}

static __always_inline __u32 route_value(struct packet *p)
{
	if (p->inner_v6)
		return route128(p->roots >> 32, p->dst_hi, p->dst_lo);
	return tunny_route32(p->roots, p->dst_lo);
}

static __always_inline int route(struct packet *p)
{
	if (likely(p->own && p->roots & TUNNY_ROOT_SIMPLE && own_entry_holds(p))) {
		p->vm_found = 1;
		return GO;
	}
	for (int hop = 0; hop <= TUNNY_PEER_HOPS_MAX; hop++) {
		__u32 root = p->inner_v6 ? p->roots >> 32 : p->roots;
		__u32 value, scope;
		__u64 ident;

		if (root & TUNNY_ROOT_SIMPLE && find_vm(p)) {
			p->vm_found = 1;
			return GO;
		}
		value = route_value(p);
		scope = value >> TUNNY_VALUE_SCOPE_SHIFT;
		if (scope == TUNNY_SCOPE_LOCAL) {
			p->vm_found = root & TUNNY_ROOT_SIMPLE ? 0 : find_vm(p);
			return GO;
		}
		if (scope == TUNNY_SCOPE_NONE)
			return icmp_or(p, DROP_ROUTE_NONE);
		if (scope == TUNNY_SCOPE_BLACKHOLE)
			return DROP_ROUTE_BLACKHOLE;
		if (scope != TUNNY_SCOPE_PEER)
			return scope == TUNNY_SCOPE_INTERNET ? DROP_SCOPE_INTERNET :
			       scope == TUNNY_SCOPE_LINE ? DROP_SCOPE_LINE :
			       scope == TUNNY_SCOPE_REGION ? DROP_SCOPE_REGION : DROP_TABLE_FAULT;
		if (hop == TUNNY_PEER_HOPS_MAX)
			return DROP_ROUTE_PEER_LOOP;
		p->tenant = line_at(value & TUNNY_VALUE_ARG_MASK);
		if (!p->tenant)
			return DROP_ROUTE_PEER_GONE;
		ident = READ_ONCE(p->tenant->ident);
		if (!(ident & TUNNY_TENANT_VALID))
			return DROP_ROUTE_PEER_GONE;
		p->to_vni = ident & 0xffffff;
		p->roots = READ_ONCE(p->tenant->roots);
	}
	return DROP_ROUTE_PEER_LOOP;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * route: VXLAN routing table, (VNI, inner destination) to scope, with peer recursion.
 *
 * A VPC whose route half says ROOT_SIMPLE has no other scope inside its local routes and no VM outside them, so a
 * visible VM-NC entry proves that the route is local and the tree is not walked. `found` then names the entry.
 */
#ifndef TUNNY_ROUTE_H
#define TUNNY_ROUTE_H

#include "../packet.h"
#include "../tables/lpm.h"
#include "../tables/prefetch.h"
#include "../tables/vm.h"
#include "../tables/flow_cache.h"

/* Who may owe an ICMP error: the software path decides. */
static __always_inline int icmp_or(__u64 options, int reason)
{
	return options & TUNNY_OPT_ICMP ? PUNT + PUNT_ICMP_DUE : reason;
}

/*
 * The entry that second_lines read is stable if its key word still says so: the roots were read in between, so it
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

/*
 * A packet with a link-local address is not forwarded, but the software path answers it if it is for the VPC's own gateway address, and takes it
 * if a VM of this node sends it to the metadata address. A verdict.
 */
__noinline int tunny_own_address(const struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct walk *w = map_value(&tunny_walks, 0);
	struct tenant t;

	if (!e || !root || !w || !tenant_find(root, e->vni, &t))
		return DROP_INNER_LINK_LOCAL;
	w->roots = t.roots;
	walk_to(w, e->vni, e->target_v6, e->target_hi, e->target_lo);
	if (find_vm(root, w) && w->vm.flags & TUNNY_VM_FLAG_GATEWAY)
		return PUNT + PUNT_GATEWAY_ADDRESS;
	return e->guest && !e->target_v6 && e->target_lo == TUNNY_METADATA_ADDRESS ? PUNT + PUNT_VM_METADATA : DROP_INNER_LINK_LOCAL;
}

static __always_inline __u32 route_value(const struct walk *w)
{
	if (w->v6)
		return route128(w->roots >> 32, w->dst_hi, w->dst_lo);
	return route32(w->roots, w->dst_lo);
}

/* Asks for what the tree's top needs, before a chain of the VM-NC table is followed in vain. */
static __always_inline void touch_tree(__u32 half)
{
	__u32 line = half & TUNNY_ROOT_LINE_MASK;

	touch_line(line_at(line));
	if ((half >> TUNNY_ROOT_LEVELS_SHIFT & 0xf) == TUNNY_ROOT_FLAT)
		touch_line(line_at(line + 1));
}

/* Goes over to the peer's VPC. Asks for the destination's VM-NC entry there, and its cell, together with the VPC's entry. */
static __always_inline int enter_peer(struct tunny_root *root, struct walk *w, __u32 vni)
{
	struct tenant t;

	tunny_prefetch(vni, w->dst_lo, TUNNY_SLOTS_MAX);
	if (tunny_flow.chunks)
		w->versions = flow_versions(root, vni, w->dst_lo);
	if (!tenant_find(root, vni, &t))
		return DROP_ROUTE_PEER_GONE;
	w->vni = vni;
	w->hops++;
	w->roots = t.roots;
	w->gateway_mac = t.mac;
	w->policy = t.policy;
	return GO;
}

/* Why a packet ends that a route neither keeps nor hands to a peer. */
static __always_inline int no_way(__u64 options, __u32 scope)
{
	if (scope == TUNNY_SCOPE_NONE)
		return icmp_or(options, DROP_ROUTE_NONE);
	return scope == TUNNY_SCOPE_BLACKHOLE ? DROP_ROUTE_BLACKHOLE :
	       scope == TUNNY_SCOPE_INTERNET ? DROP_SCOPE_INTERNET :
	       scope == TUNNY_SCOPE_LINE ? DROP_SCOPE_LINE :
	       scope == TUNNY_SCOPE_REGION ? DROP_SCOPE_REGION : DROP_TABLE_FAULT;
}

/*
 * The peer that an IPv4 destination of the ingress VPC leads to, if the VPC's entry says so by itself; else 0. The packet's roots
 * still stand in the entry, so the words that are loaded after them belong to them.
 */
static __always_inline __u32 peer_of(struct tunny_root *root, const struct walk *w)
{
	const struct tunny_tenant_bucket *b = tenant_bucket_at(root, tenant_hash(w->vni, root->salt));
	__u64 slot, vni = 0;
	struct tenant t;

	if (!b || !((__u32)w->roots >> TUNNY_ROOT_LEVELS_SHIFT & 0xf))
		return 0;
	slot = tenant_slot(b, tenant_key(w->vni));
	tenant_read(b, slot, &t);
	if (t.roots != w->roots || (t.key ^ tenant_key(w->vni)) >> (TUNNY_TENANT_VNI_SHIFT - 1))
		return 0;
	slot++;
#pragma unroll
	for (int i = 0; i < 6; i++) {
		__u64 word = READ_ONCE(b->peers[i]), length = word >> TUNNY_PEER_LENGTH_SHIFT & 63;
		__u64 differ = ((word >> TUNNY_PEER_NETWORK_SHIFT) ^ w->dst_lo) >> (32 - length & 63);

		differ |= (word & TUNNY_PEER_ENTRY_MASK) ^ slot;
		vni |= word >> TUNNY_PEER_VNI_SHIFT & 0xffffff & mask_if_zero(differ);
		/* One word at a time: all at once do not fit into registers. */
		OPAQUE(vni);
	}
	return vni;
}

/* The destination is behind a VM of this VPC, a router, whose entry stands under an address that no packet has. */
static __noinline int via(struct tunny_root *root, struct walk *w, __u32 hop)
{
	w->v6 = 0;
	w->dst_lo = hop;
	w->own_missed = 0;
	w->found = find_vm4(root, w);
	return w->found && !(w->vm.flags & TUNNY_VM_FLAG_GATEWAY) ? GO : icmp_or(root->options, DROP_VM_UNKNOWN);
}

/* The walk from the ingress VPC along peer routes. GO: the VPC at hand is the destination's. */
__noinline int tunny_walk(struct walk *w)
{
	__u32 half, value, scope, simple, peer;
	struct tunny_root *root = map_value(&tunny_root, 0);
	int end;

	if (!w || !root)
		return DROP_TABLE_FAULT;
	peer = w->v6 ? 0 : peer_of(root, w);
	/* No VM of a VPC that is ROOT_SIMPLE lies in a route to a peer, and that of another one does not count. */
	if (peer) {
		end = enter_peer(root, w, peer);
		if (end)
			return end;
	}
	/* Unrolled: clang lays the loop out with a back edge that falls through, which 6.1 refuses. */
#pragma unroll
	for (int hop = 0; hop <= TUNNY_PEER_HOPS_MAX; hop++) {
		half = w->v6 ? w->roots >> 32 : w->roots;
		simple = half & TUNNY_ROOT_SIMPLE;
		/* A peer's tree is hardly ever looked up: what leads here is that the VM is the peer's. */
		if (!w->hops)
			touch_tree(half);
		w->found = simple ? find_vm(root, w) : 0;
		if (w->found)
			return GO;
		value = route_value(w);
		scope = value >> TUNNY_VALUE_SCOPE_SHIFT;
		if (scope == TUNNY_SCOPE_LOCAL) {
			if (unlikely(value & TUNNY_VALUE_ARG_MASK))
				return via(root, w, value & TUNNY_VALUE_ARG_MASK);
			w->found = simple ? 0 : find_vm(root, w);
			return GO;
		}
		if (scope != TUNNY_SCOPE_PEER) {
			w->line = value & TUNNY_VALUE_ARG_MASK;
			return no_way(root->options, scope);
		}
		if (w->hops >= TUNNY_PEER_HOPS_MAX)
			return DROP_ROUTE_PEER_LOOP;
		end = enter_peer(root, w, value & 0xffffff);
		if (end)
			return end;
	}
	return DROP_ROUTE_PEER_LOOP;
}

static __always_inline int route(struct packet *p)
{
	struct walk *w;
	int end;

	if (likely(p->own && p->roots & TUNNY_ROOT_SIMPLE && own_entry_holds(p))) {
		p->vm_found = 1;
		p->hops = 0;
		p->to_policy = p->policy;
		return GO;
	}
	w = map_value(&tunny_walks, 0);
	if (!w)
		return DROP_TABLE_FAULT;
	/* A global function needs it in memory; the packet is in registers. */
	walk_to(w, p->vni, p->inner_v6, p->inner_v6 ? p->dst_hi : 0, p->dst_lo);
	w->roots = p->roots;
	w->gateway_mac = p->gateway_mac;
	w->policy = p->policy;
	/* An entry that changed under our eyes is looked up anew. */
	w->own_missed = !p->own && !p->inner_v6;
	w->own_rest = p->vm_rest;
	end = tunny_walk(w);
	if (end)
		return end;
	p->to_vni = w->vni;
	p->gateway_mac = w->gateway_mac;
	p->to_policy = w->policy;
	p->vm_found = w->found;
	p->hops = w->hops;
	p->vm = w->vm;
	return unlikely(p->policy & TUNNY_POLICY_PATH_PEERINGS) && p->hops && !tunny_probes.only ? PUNT + PUNT_PATH_SOFTWARE : GO;
}

#endif

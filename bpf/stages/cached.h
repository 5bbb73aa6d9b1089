/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The flow cache in front of the stages: what tenant, route, nat, filter, locate and meter decided for a flow's packet before, as long as
 * nothing changed that they look at. It stands behind parse, and what it decides goes through rewrite, encapsulate and emit as every packet
 * does. A packet that differs from a plain one in any way goes to the stages. docs/design/flow-cache.md
 */
#ifndef TUNNY_CACHED_H
#define TUNNY_CACHED_H

#include "../packet.h"
#include "../tables/flow_cache.h"
#include "../framing/framing.h"
#include "../tables/prefetch.h"
#include "../tables/vm.h"

/* Both addresses of an IPv4 header, each by a load of its own: one of both would wait for the two stores of who wrote them. */
static __always_inline __u64 addresses_of(const void *ip)
{
	return (__u64)*(const __u32 *)(ip + 16) << 32 | *(const __u32 *)(ip + 12);
}

/*
 * Looks a packet's flow up. 1: the packet goes on as p says now. 0: it goes to the stages, and its place and its versions are noted, before
 * the first table is read for it.
 */
static __always_inline int cached(struct packet *p, struct end *e)
{
	const void *ip = data_of(p->ctx) + p->inner_at + ETH_BYTES;
	const struct tunny_root *root = p->root;
	struct tunny_flow_line *line;
	__u64 addresses, rest, versions, target, vpc, vm, hash;
	const void *cells, *counters;
	__u32 to_vni;

	if (!tunny_flow.chunks || p->inner_v6 || p->sender_v6 || !p->whole || p->slot >= tunny_flow.cpus)
		return 0;
	if (ip + IPV4_BYTES > end_of(p->ctx))
		return 0;
	addresses = addresses_of(ip);
	rest = (__u64)p->vni << TUNNY_FLOW_VNI_SHIFT | (__u64)*(const __u8 *)(ip + 9) << TUNNY_FLOW_PROTOCOL_SHIFT | p->ports;
	hash = tunny_flow_place(addresses, rest, tunny_flow.salt) | 1;
	line = flow_line(p->slot, hash);
	if (!line)
		return 0;
	vpc = tenant_hash(p->vni, root->salt);
	vm = tunny_hash1(vm4_key(p->vni, p->dst_lo), root->salt);
	counters = counters_at(root, tunny_bucket_of(vpc, root->tenant_groups), p->slot);
	cells = cells_at(root, tunny_bucket_of(vm, root->vm_groups));
	touch(line);
	touch_line(cells);
	touch_line(counters);
	versions = READ_ONCE(root->flow_version) + flow_version(tunny_bucket_of(vpc, TUNNY_FLOW_VERSIONS)) +
		   flow_version(tunny_bucket_of(vm, TUNNY_FLOW_VERSIONS));
	/* Versions come before tables. */
	asm volatile("" ::: "memory");
	e->flow_place = hash;
	e->flow_rest = rest;
	e->flow_versions = versions;
	if (line->addresses != addresses || line->rest != rest)
		return 0;
	target = line->target;
	to_vni = target >> TUNNY_FLOW_VNI_SHIFT;
	if (unlikely(to_vni != p->vni))
		versions += flow_version(tunny_version_of_vpc(to_vni, root->salt)) +
			    flow_version(tunny_version_of_v4(to_vni, p->dst_lo, root->salt));
	if (line->versions != versions || line->sender != p->sender_lo || p->ttl <= 1)
		return 0;
	p->nexthop = line_at(line->nexthop);
	if (!p->nexthop || !(READ_ONCE(p->nexthop->dmac) & TUNNY_NEXTHOP_READY))
		return 0;
	p->nc_v6 = 0;
	if (overhead(p) + p->inner_bytes > READ_ONCE(p->nexthop->smac_mtu) >> 48)
		return 0;
	p->nc_lo = line->nc;
	p->to_vni = to_vni;
	p->vm.mac = line->mac_port >> 16;
	p->vm.id = target >> TUNNY_FLOW_VM_SHIFT & (TUNNY_VMS_MAX - 1);
	p->gateway_mac = line->gateway_mac;
	p->flow_hash = line->mac_port & 0xffff;
	p->tenant_key = tenant_key(p->vni) | (__u64)line->tenant << TUNNY_TENANT_ID_SHIFT;
	e->tenant = line->tenant;
	e->admission = ACCEPTED;
	p->stats->flow_hits++;
	return 1;
}

/* Whether the stages looked at nothing for this packet but what the versions stand for. */
static __always_inline int plain_flow(const struct packet *p)
{
	return !((p->policy | p->to_policy) & TUNNY_POLICY_FILTER) && !(p->tenant_key & TUNNY_TENANT_METERED) &&
	       !(p->vm.flags & TUNNY_VM_FLAG_METERED) && !p->nc_v6 && p->hops <= 1;
}

/* Notes what the stages decided for a packet that goes on. */
static __always_inline void remember(struct packet *p, const struct end *e)
{
	const void *ip = data_of(p->ctx) + p->inner_at + ETH_BYTES;
	struct tunny_flow_line *line;
	__u64 addresses, rest = e->flow_rest;

	if (!tunny_flow.chunks || !e->flow_place || !plain_flow(p) || e->flow_versions >= TUNNY_FLOW_CHANGING)
		return;
	line = flow_line(p->slot, e->flow_place);
	if (!line || ip + IPV4_BYTES > end_of(p->ctx))
		return;
	addresses = addresses_of(ip);
	if (line->rest && (line->rest != rest || line->addresses != addresses)) {
		if (p->stats->rx * TUNNY_HASH_MUL_A >> 32 & (TUNNY_FLOW_EVICT_ONE_IN - 1))
			return;
		p->stats->flow_evictions++;
	}
	p->stats->flow_fills++;
	line->addresses = addresses;
	line->versions = e->flow_versions;
	line->sender = p->sender_lo;
	line->nc = p->nc_lo;
	line->mac_port = p->vm.mac << 16 | (p->flow_hash & 0xffff);
	line->gateway_mac = p->gateway_mac;
	line->target = (__u64)p->to_vni << TUNNY_FLOW_VNI_SHIFT | (__u64)p->vm.id << TUNNY_FLOW_VM_SHIFT;
	line->nexthop = p->nexthop_line;
	line->tenant = tenant_id(p->tenant_key);
	line->rest = rest;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the stages decided for a packet is noted in the flow cache, whose lines tell their counts. docs/design/flow-cache.md */
#ifndef TUNNY_REMEMBER_H
#define TUNNY_REMEMBER_H

#include "../connection/states.h"
#include "../tables/circuit.h"
#include "../tables/flow_cache.h"
#include "emit.h"

/* The VPC id and the VM id that a line has. 6.1 does not see that they are small: the masks of who looks them up must stay. */
static __always_inline __u32 line_tenant(const struct tunny_flow_line *line)
{
	__u32 tenant = READ_ONCE(line->versions) >> TUNNY_FLOW_TENANT_SHIFT |
		       (READ_ONCE(line->nexthop) >> TUNNY_FLOW_TENANT_HIGH_SHIFT & 15) << 16;

	OPAQUE(tenant);
	return tenant;
}

static __always_inline __u32 line_vm(const struct tunny_flow_line *line)
{
	__u32 vm = READ_ONCE(line->vni) >> TUNNY_FLOW_VM_SHIFT | (__u32)READ_ONCE(line->vm_high) << 8;

	OPAQUE(vm);
	return vm;
}

/*
 * Adds what a line has sent on to the counts of its VPC and VM. The program of the line's own CPU calls it, and on that CPU tunny_gather, into
 * which a packet may break before Linux 6.11: so each step is one instruction, and what turns out to be of another line by then goes back.
 */
__noinline int tunny_flow_tell(struct tunny_flow_line *line, __u32 slot)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 addresses, rest, count, before, *cells;
	__u32 tenant, vm, kind, nexthop;

	if (!line || !root || !READ_ONCE(line->count))
		return 0;
	addresses = READ_ONCE(line->addresses);
	rest = READ_ONCE(line->rest);
	nexthop = READ_ONCE(line->nexthop);
	kind = nexthop >> TUNNY_FLOW_KIND_SHIFT;
	tenant = line_tenant(line);
	vm = line_vm(line);
	count = __sync_lock_test_and_set(&line->count, 0);
	if (unlikely(READ_ONCE(line->addresses) != addresses || READ_ONCE(line->rest) != rest)) {
		__sync_fetch_and_add(&line->count, count);
		return 0;
	}
	cells = kind == TUNNY_FLOW_IN ? NULL : counters_at(root, tenant / 8, slot);
	if (cells && slot < root->xdp_slots) {
		before = __sync_fetch_and_add(&cells[tenant & 7], count);
		carry_tenant(root, tenant, slot, before);
	}
	if (kind != TUNNY_FLOW_OUT && nexthop & TUNNY_ROOT_LINE_MASK)
		add_to_vm(root, vm, count);
	return 0;
}

/* Writes what the stages decided for a packet that was sent into its flow's line, if it gets one. */
__noinline int tunny_flow_note(void)
{
	__u32 slot = cpu_number();
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	struct tunny_stats *stats = map_value(&tunny_stats, slot);
	struct tunny_flow_line *line, *other;
	__u64 hash, luck;

	if (!miss || !stats)
		return 0;
	hash = miss->place;
	line = flow_pair(slot, hash);
	if (!line)
		return 0;
	other = line + 1;
	luck = stats->rx * TUNNY_HASH_MUL_A >> 32;
	/* Its own, else an empty one, else in one of some packets either. */
	if (flow_is(other, hash, miss->addresses, miss->rest) ||
	    (!flow_is(line, hash, miss->addresses, miss->rest) && line->rest && (!other->rest || luck & 1)))
		line = other;
	/* Who fills an empty place has not looked in vain: so a cache warms up at full speed, and who makes up flows fills it once. */
	if (!line->rest) {
		miss->wasted -= !!miss->wasted;
	} else if (!flow_is(line, hash, miss->addresses, miss->rest)) {
		if (luck >> 1 & (TUNNY_FLOW_EVICT_ONE_IN - 1))
			return 0;
		stats->flow_evictions++;
	}
	tunny_flow_tell(line, slot);
	stats->flow_fills++;
	line->addresses = miss->line.addresses;
	line->versions = miss->line.versions;
	line->sender = miss->line.sender;
	line->nc = miss->line.nc;
	line->macs = miss->line.macs;
	line->macs_rest = miss->line.macs_rest;
	line->vni = miss->line.vni;
	line->nexthop = miss->line.nexthop;
	line->port = miss->line.port;
	line->vm_high = miss->line.vm_high;
	line->count = 0;
	line->rest = miss->rest;
	return 0;
}

/* The first word of a session's line. */
static __always_inline __u64 session_of_flow(const struct flow_miss *miss, __u32 record, __u64 policy)
{
	return flow_mix(miss->place) << TUNNY_FLOW_MIX_SHIFT | (__u64)record << TUNNY_FLOW_RECORD_SHIFT |
	       (policy >> TUNNY_POLICY_EPOCH_SHIFT & 0xffff);
}

/* MAC addresses of the inner frame. */
static __always_inline void note_macs(struct flow_miss *miss, __u64 dst, __u64 src)
{
	store_be64(&miss->line.macs, dst << 16 | (src >> 32 & 0xffff));
	store_be32(&miss->line.macs_rest, src);
}

/* What leads to a VM: its NC, MAC addresses and number. */
static __always_inline void note_target(struct flow_miss *miss, const struct packet *p)
{
	miss->line.nc = __builtin_bswap32(p->nc_lo);
	note_macs(miss, p->vm.mac, p->gateway_mac);
	miss->line.vni = __builtin_bswap32(p->to_vni << 8) | p->vm.id << TUNNY_FLOW_VM_SHIFT;
	miss->line.vm_high = p->vm.id >> 8;
	store_be16(&miss->line.port, tunny_source_port(p->flow_hash));
	miss->line.port &= ~(TUNNY_FLOW_METERED_VPC | TUNNY_FLOW_METERED_VM);
	miss->line.port |= (p->tenant_key & TUNNY_TENANT_METERED ? TUNNY_FLOW_METERED_VPC : 0) |
			   (p->vm.flags & TUNNY_VM_FLAG_METERED ? TUNNY_FLOW_METERED_VM : 0);
}

static __always_inline __u32 note_path(__u32 nexthop, __u32 tenant, __u32 kind)
{
	return nexthop | (tenant >> 16 & 15) << TUNNY_FLOW_TENANT_HIGH_SHIFT | kind << TUNNY_FLOW_KIND_SHIFT;
}

/* The session of the filter that a packet went by, as a first word. 0: there is none, or none that the cache knows. */
static __always_inline __u64 pair_of_flow(const struct flow_miss *miss)
{
	const struct flow *w = map_value(&tunny_flows, 0);

	if (!w || !w->line || w->src_lo == w->dst_lo || (w->upper != UPPER_TCP && w->upper != UPPER_UDP))
		return 0;
	return session_of_flow(miss, w->line, w->policy);
}

/* What stands for who sent a packet. 0: nothing does, and the packet is not noted. */
static __always_inline __u32 sender_of_flow(const struct packet *p, const struct flow_miss *miss)
{
	if (!p->edge)
		return p->end->sender_lo < TUNNY_FLOW_EDGE ? __builtin_bswap32(p->end->sender_lo) : 0;
	/* The tags were looked up before the versions could be read: what they stood for must still hold. */
	if (tunny_circuit_vpc((miss->edge | miss->rest >> TUNNY_FLOW_VNI_SHIFT) & TUNNY_FLOW_TAGS_MASK) != miss->circuit)
		return 0;
	return __builtin_bswap32(miss->edge | p->vni);
}

/* Notes what the stages decided for a packet from a VM or a customer to a VM, if they looked at nothing but what the versions and the line stand for. */
static __always_inline void remember(struct packet *p)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct walk *w = map_value(&tunny_walks, 0);
	__u32 tenant = tenant_id(p->tenant_key), kind = TUNNY_FLOW_PLAIN, sender;

	if (p->sender_v6 || p->inner_v6 || !miss || !w || !miss->place || p->nat || p->nc_v6 || p->hops > 1)
		return;
	miss->line.addresses = miss->addresses;
	miss->line.versions = miss->versions + (p->hops ? w->versions : 0);
	if ((p->policy | p->to_policy) & TUNNY_POLICY_FILTER) {
		/* What a customer sends in a session is left to the stages. */
		if (p->edge)
			return;
		kind = TUNNY_FLOW_PAIR;
		miss->line.addresses = pair_of_flow(miss);
		if (!miss->line.addresses)
			return;
		miss->line.versions += miss->more;
	}
	sender = sender_of_flow(p, miss);
	if (!sender || miss->line.versions >= TUNNY_FLOW_CHANGING)
		return;
	miss->line.versions |= (__u64)tenant << TUNNY_FLOW_TENANT_SHIFT;
	miss->line.sender = sender;
	miss->line.nexthop = note_path(p->nexthop_line, tenant, kind);
	note_target(miss, p);
	miss->ready = 1;
}

/* The same of a packet from a VM that has been sent to a customer. */
static __always_inline void remember_line(const struct packet *p, const struct flow *w, const struct walk *walk)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	__u32 tenant = tenant_id(p->tenant_key), sender;

	/* In a session: left to the stages. */
	if (p->edge || p->sender_v6 || p->inner_v6 || !miss || !miss->place || p->nat || walk->hops > 1 || w->policy & TUNNY_POLICY_FILTER)
		return;
	sender = sender_of_flow(p, miss);
	miss->line.versions = miss->versions + (walk->hops ? walk->versions : 0);
	if (!sender || miss->line.versions >= TUNNY_FLOW_CHANGING)
		return;
	miss->line.addresses = miss->addresses;
	miss->line.versions |= (__u64)tenant << TUNNY_FLOW_TENANT_SHIFT;
	miss->line.sender = sender;
	miss->line.nc = w->circuit;
	note_macs(miss, w->ce, walk->gateway_mac);
	miss->line.vni = __builtin_bswap32(walk->vni << 8);
	miss->line.vm_high = 0;
	miss->line.port = p->tenant_key & TUNNY_TENANT_METERED ? TUNNY_FLOW_METERED_VPC : 0;
	miss->line.nexthop = note_path(0, tenant, TUNNY_FLOW_PLAIN);
	miss->ready = 1;
}

/* Whether the cache knows such sessions to the Internet and from it; what is noted of them. NULL: it does not. */
static __always_inline struct flow_miss *miss_of(const struct flow *w)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);

	return miss && miss->place && !w->v6 && (w->upper == UPPER_TCP || w->upper == UPPER_UDP) ? miss : NULL;
}

/* The same of a packet to the Internet, which has been sent. */
static __always_inline void remember_out(const struct packet *p, const struct flow *w)
{
	struct flow_miss *miss = miss_of(w);
	__u32 tenant = tenant_id(p->tenant_key);

	if (!miss || p->edge || p->sender_v6 || p->end->sender_lo >= TUNNY_FLOW_EDGE || miss->versions >= TUNNY_FLOW_CHANGING)
		return;
	miss->line.addresses = session_of_flow(miss, w->line, w->policy);
	miss->line.versions = miss->versions | (__u64)tenant << TUNNY_FLOW_TENANT_SHIFT;
	miss->line.sender = __builtin_bswap32(p->end->sender_lo);
	miss->line.nc = w->public_addr;
	miss->line.port = w->port;
	miss->line.macs = p->tenant_key & TUNNY_TENANT_METERED ? TUNNY_FLOW_METERED_VPC : 0;
	miss->line.macs_rest = 0;
	miss->line.vni = __builtin_bswap32(p->vni << 8);
	miss->line.vm_high = 0;
	miss->line.nexthop = note_path(w->nexthop, tenant, TUNNY_FLOW_OUT);
	miss->ready = 1;
}

/* The same of a packet from the Internet. */
static __always_inline void remember_in(const struct packet *p, const struct flow *w)
{
	struct flow_miss *miss = miss_of(w);
	__u64 versions;

	if (!miss || p->nc_v6)
		return;
	versions = miss->versions + miss->more;
	if (versions >= TUNNY_FLOW_CHANGING)
		return;
	miss->line.addresses = session_of_flow(miss, w->line, w->policy);
	miss->line.versions = versions | (__u64)w->port << TUNNY_FLOW_TENANT_SHIFT;
	miss->line.sender = __builtin_bswap32(w->walk.dst_lo);
	miss->line.nexthop = note_path(p->nexthop_line, 0, TUNNY_FLOW_IN);
	note_target(miss, p);
	miss->ready = 1;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Nat outwards: packets of VMs to the Internet lose their tunnel. */
#ifndef TUNNY_NAT_OUT_H
#define TUNNY_NAT_OUT_H

#include "nat_rewrite.h"
#include "../framing/plain.h"
#include "route.h"
#include "meter.h"
#include "rewrite.h"
#include "emit.h"
#include "remember.h"

/* The next hop towards the Internet for a flow. Returns GO or the verdict. */
static __always_inline int internet_nexthop(struct tunny_root *root, struct flow *w, __u64 flow, struct tunny_nexthop **hop)
{
	__u64 word = READ_ONCE(root->internet);
	__u32 line = w->v6 ? word >> 32 : word, count, member;
	struct tunny_nexthop_group *group;

	if (!line)
		return DROP_UNDERLAY_NO_ROUTE;
	group = line_at(line);
	if (!group)
		return DROP_TABLE_FAULT;
	count = READ_ONCE(group->count);
	if (!count || count > TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	member = tunny_bucket_of(flow, count);
	OPAQUE(member);
	if (member >= TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	w->nexthop = READ_ONCE(group->members[member]);
	*hop = w->nexthop ? line_at(w->nexthop) : NULL;
	if (!*hop)
		return DROP_UNDERLAY_NO_ROUTE;
	return READ_ONCE((*hop)->dmac) & TUNNY_NEXTHOP_READY ? GO : PUNT + PUNT_NEXTHOP_UNRESOLVED;
}

/* Hash of the flow as it leaves with this source. */
static __always_inline __u64 leaving(const struct flow *w, __u32 addr, __u32 port)
{
	__u32 proto = w->key.w[0] >> 32 & 0xff, ports = w->src_port << 16 | w->dst_port;

	if (w->upper == UPPER_ECHO)
		ports = 0;
	else if (ports)
		ports = port << 16 | w->dst_port;
	if (w->v6)
		return tunny_flow_hash_v6(w->src_hi, w->src_lo, w->dst_hi, w->dst_lo, proto, ports);
	return tunny_flow_hash_v4(addr, w->dst_lo, proto, ports);
}

/* Is the remote side one of our own public addresses? */
static __always_inline int hairpin(struct tunny_root *root, const struct flow *w)
{
	__u64 roots = READ_ONCE(root->public_roots);

	return w->v6 ? route128(roots >> 32, w->dst_hi, w->dst_lo) : route32(roots, w->dst_lo);
}

/* Source, TTL and TOS of a packet that leaves. */
static __always_inline int leave(struct frame_ctx *ctx, const struct flow *w)
{
	void *ip;

	if (!w->v6 && translate4(ctx, w->at, w->upper, w->public_addr, w->port, 0))
		return -1;
	ip = front(ctx) + (w->at & 0xff);
	if (ip + (w->v6 ? IPV6_BYTES : IPV4_BYTES) > behind(ctx))
		return -1;
	lower_ttl(ctx, ip, w->v6, w->tos);
	return 0;
}

/*
 * A packet of a VM. Negative: sent. GO: not by the fast path, w->why says why not, if the route leads to the Internet. Else a
 * verdict.
 */
__noinline int tunny_nat_out(struct frame_ctx *ctx, struct flow *w)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_session_record *r;
	struct tunny_nexthop *hop = NULL;
	__u64 state;
	int end;

	if (!w || !root)
		return DROP_TABLE_FAULT;
	w->why = read_packet(ctx, w);
	if (w->why)
		return GO;
	inner_key(w);
	w->why = PUNT_SESSION_NEW;
	w->line = tunny_session_find(&w->key);
	r = w->line ? session_line(w->line) : NULL;
	if (!r)
		return GO;
	state = READ_ONCE(r->state);
	w->why = session_verdict(w, r, state, 0);
	if (w->why)
		return GO;
	if (hairpin(root, w)) {
		w->why = PUNT_NAT_HAIRPIN;
		return GO;
	}
	if (w->ttl <= 1)
		return icmp_or(root->options, DROP_TTL_EXPIRED);
	w->public_addr = READ_ONCE(r->outer) >> 32;
	w->port = w->v6 ? w->src_port : READ_ONCE(r->outer) >> 16 & 0xffff;
	end = internet_nexthop(root, w, leaving(w, w->public_addr, w->port), &hop);
	if (end)
		return end;
	if (!hop)
		return DROP_UNDERLAY_NO_ROUTE;
	if (longest_in(&w->segments, ETH_BYTES + w->bytes) - ETH_BYTES > READ_ONCE(hop->smac_mtu) >> 48)
		return PUNT + PUNT_ICMP_DUE;
	if (unlikely(stays_in_tunnel(&w->segments)) && w->at != ETH_BYTES)
		return PUNT + PUNT_OFFLOADED;
	if (meter_vpc(root, w->tenant_key, inner_bytes_of(w), packets_in(&w->segments)))
		return DROP_METER_VPC;
	if (leave(ctx, w) || plain_encapsulate(ctx, w, hop))
		return DROP_TX_FAILED;
	end = transmit(ctx, hop->ifindex);
	if (!end)
		return DROP_TX_FAILED;
	take(w, r, state, 0);
	return -end;
}

/* Serves a packet outwards, and counts it as emit would. */
static __always_inline int nat_serve(struct packet *p, struct flow *w)
{
	int end = tunny_nat_out(p->ctx, w);

	if (end >= 0)
		return end;
	count_ingress(p);
	count_sent(p->stats, p->end, ETH_BYTES + w->bytes);
	p->stats->nat += packets_in(&p->end->segments);
	if (tunny_flow.chunks && !p->edge)
		remember_out(p, w);
	return end;
}

/* The hook before route. GO: the packet is routed. Negative: it was sent. */
static __always_inline int nat(struct packet *p)
{
	struct flow *w;

	if (likely(!(p->policy & TUNNY_POLICY_NAT)) || (p->own && p->roots & TUNNY_ROOT_SIMPLE))
		return GO;
	w = map_value(&tunny_flows, 0);
	if (!w)
		return DROP_TABLE_FAULT;
	w->why = 0;
	flow_of(w, p);
	w->policy = p->policy;
	w->tenant_key = p->tenant_key;
	w->tos = new_inner_tos(p);
	p->nat = 1;
	/* The destination may be a VM in the chain of its bucket, or an IPv6 one: then the route is looked up first. */
	if (!p->far && p->roots & TUNNY_ROOT_SIMPLE && (p->inner_v6 || p->vm_rest))
		return GO;
	return nat_serve(p, w);
}

/* The verdict of route. If it leads to the Internet, nat says what becomes of the packet. Negative: it was sent. */
static __always_inline int nat_verdict(struct packet *p, int end)
{
	struct flow *w;
	struct walk *walk;

	if (likely(end != DROP_SCOPE_INTERNET))
		return end;
	w = map_value(&tunny_flows, 0);
	walk = map_value(&tunny_walks, 0);
	if (!w || !walk)
		return DROP_TABLE_FAULT;
	/* A peer's route to the Internet is not for its peers. */
	if (!(p->policy & TUNNY_POLICY_NAT) || walk->hops)
		return end;
	/* A VM's entry went away under our eyes. */
	if (unlikely(!p->nat))
		return PUNT + PUNT_SESSION_NEW;
	if (!w->why) {
		end = nat_serve(p, w);
		if (end)
			return end;
	}
	return PUNT + (w->why & (PUNT_REASONS - 1));
}

#endif

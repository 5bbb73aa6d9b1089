/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What becomes of a packet to a VM of this node: it leaves by the VM's port. Locate finds no way to such a VM's NC, which is this node; so
 * packets to others meet nothing here. Apart from the hot path, in a global function that the verifier checks once.
 */
#ifndef TUNNY_NEAR_H
#define TUNNY_NEAR_H

#include "filter.h"
#include "locate.h"
#include "meter.h"
#include "rewrite.h"
#include "emit.h"
#include "../framing/vmport.h"

/* Sends a packet whose filter has let it pass: port, size, session, meters, TTL, MAC addresses. Negative: it was sent. Else a verdict. */
__noinline int tunny_near_send(struct frame_ctx *ctx, struct flow *w, const struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct exit x;
	void *ip;
	__u64 port;
	int action;

	if (!w || !e || !root)
		return DROP_TABLE_FAULT;
	port = tunny_near(w->to_vni, w->walk.vm.mac, w->walk.vm.nc);
	if (port && port != NEAR_NONE && longest_in(&w->segments, w->inner_bytes) - ETH_BYTES > port >> 32)
		return PUNT + PUNT_ICMP_DUE;
	if (unlikely(stays_in_tunnel(&w->segments)) && w->at != ETH_BYTES)
		return PUNT + PUNT_OFFLOADED;
	if (w->policy & TUNNY_POLICY_FILTER)
		connection_takes(w);
	if (!port)
		return DROP_UNDERLAY_NO_ROUTE;
	if (port == NEAR_NONE)
		return DROP_VM_PORT_NONE;
	if (meter_vpc(root, w->tenant_key, inner_bytes_of(w), packets_in(&w->segments)))
		return DROP_METER_VPC;
	if (w->walk.vm.flags & TUNNY_VM_FLAG_METERED && meter_vm(root, w->walk.vm.id, inner_bytes_of(w), packets_in(&w->segments)))
		return DROP_METER_VM;
	ip = front(ctx) + (w->at & 0xff);
	if (ip + (w->v6 ? IPV6_BYTES : IPV4_BYTES) > behind(ctx))
		return DROP_TX_FAILED;
	lower_ttl(ctx, ip, w->v6, w->tos);
	w->frame = qinq_encapsulate(ctx, w, w->walk.vm.mac, w->walk.gateway_mac);
	action = w->frame ? transmit(ctx, port & TUNNY_CIRCUIT_IFINDEX_MASK) : 0;
	if (!action)
		return DROP_TX_FAILED;
	/* Not before: what lives from there to here takes of the stack. */
	x = exit_of(ctx);
	if (!x.root || !x.stats)
		return -action;
	count_accepted(&x, e);
	add_to_vm(x.root, w->walk.vm.id, counted(e));
	count_sent(x.stats, e, w->frame);
	return -action;
}

/* What becomes of a packet for which locate found no way. Negative: it was sent. Else a verdict, and its session has taken what it is to take. */
static __always_inline int near_verdict(struct packet *p, const struct end *e)
{
	struct flow *w = map_value(&tunny_flows, 0);

	if (!w)
		return DROP_TABLE_FAULT;
	flow_of(w, p);
	w->to_vni = p->to_vni;
	w->policy = pair_policy(p);
	w->tenant_key = p->tenant_key;
	w->tos = new_inner_tos(p);
	w->tags = 0;
	w->circuit = 0;
	w->walk.vm = p->vm;
	w->walk.gateway_mac = p->gateway_mac;
	return tunny_near_send(p->ctx, w, e);
}

#endif

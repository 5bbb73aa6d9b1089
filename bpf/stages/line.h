/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What becomes of a packet whose route leads to a customer's line: the stages behind route, for a destination that is no VM. Apart from the
 * hot path, in global functions that the verifier checks once.
 */
#ifndef TUNNY_LINE_H
#define TUNNY_LINE_H

#include "filter.h"
#include "locate.h"
#include "meter.h"
#include "rewrite.h"
#include "remember.h"
#include "../framing/qinq.h"

/* The circuit that the line is at which the walk has ended. GO, or the drop: there is none here. */
__noinline int tunny_circuit_of(struct flow *w)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	const struct walk *walk = map_value(&tunny_walks, 0);
	__u64 word, port;

	if (!w || !root || !walk)
		return DROP_TABLE_FAULT;
	word = circuit_find(root, circuit_by_vni(walk->vni, walk->line & 0xff), &w->ce);
	if (!word)
		return DROP_SCOPE_LINE;
	w->circuit = word >> TUNNY_CIRCUIT_TAGS_SHIFT & 0xfffffff;
	port = READ_ONCE(root->edge_ports[w->circuit >> TUNNY_CIRCUIT_PORT_SHIFT & (EDGE_PORTS - 1)]);
	if (!(port & TUNNY_EDGE_PORT_VALID))
		return DROP_SCOPE_LINE;
	/* At another node, to which the packet goes as it came; or an Ethernet header would be a part of the packet there. */
	if (port & (TUNNY_EDGE_PORT_ELSEWHERE | TUNNY_EDGE_PORT_TUN) && !tunny_probes.only)
		return PUNT + PUNT_PATH_SOFTWARE;
	/* Only the software path can let a packet wait. */
	if (unlikely(w->ce >> TUNNY_CIRCUIT_CLASS_SHIFT) && !tunny_probes.only)
		return PUNT + PUNT_SHAPED;
	/* Tags stand beside a socket buffer, two of them neither here nor there. */
	if (TAGS_BESIDE && port >> TUNNY_EDGE_PORT_TAGS_SHIFT & 3)
		return PUNT + PUNT_OFFLOADED;
	w->ce &= (1ULL << TUNNY_CIRCUIT_CLASS_SHIFT) - 1;
	w->egress = port;
	w->mtu = port >> TUNNY_EDGE_PORT_MTU_SHIFT & 0xffff;
	w->tags = port >> TUNNY_EDGE_PORT_TAGS_SHIFT & 3;
	return GO;
}

/*
 * Sends a packet out of a circuit whose filter has let it pass: size, session, meter, TTL, tags. Negative: it was sent, w->frame is how long it
 * was. Else a verdict.
 */
__noinline int tunny_leave(struct frame_ctx *ctx, struct flow *w)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	const struct walk *walk = map_value(&tunny_walks, 0);
	__u32 counted;
	void *ip;
	int action;

	if (!w || !root || !walk)
		return DROP_TABLE_FAULT;
	/* A link's MTU leaves room for one tag, as Linux has it, and no more. */
	counted = w->tags > 1 ? TAG_BYTES : 0;
	if (longest_in(&w->segments, w->inner_bytes) - ETH_BYTES + counted > w->mtu)
		return PUNT + PUNT_ICMP_DUE;
	if (w->policy & TUNNY_POLICY_FILTER)
		connection_takes(w);
	if (meter_vpc(root, w->tenant_key, inner_bytes_of(w), packets_in(&w->segments)))
		return DROP_METER_VPC;
	ip = front(ctx) + (w->at & 0xff);
	if (ip + (w->v6 ? IPV6_BYTES : IPV4_BYTES) > behind(ctx))
		return DROP_TX_FAILED;
	lower_ttl(ctx, ip, w->v6, w->tos);
	w->frame = qinq_encapsulate(ctx, w, w->ce, walk->gateway_mac);
	action = w->frame ? transmit(ctx, w->egress) : 0;
	return action ? -action : DROP_TX_FAILED;
}

/* The verdict of route, if that is a line. Negative: it was sent. */
static __always_inline int line_verdict(struct packet *p, const struct end *e, int end)
{
	const struct walk *walk;
	struct flow *w;

	if (likely(end != DROP_SCOPE_LINE))
		return end;
	walk = map_value(&tunny_walks, 0);
	w = map_value(&tunny_flows, 0);
	if (!w || !walk)
		return DROP_TABLE_FAULT;
	flow_of(w, p);
	end = tunny_circuit_of(w);
	if (end)
		return end;
	if (p->ttl <= 1)
		return icmp_or(p->options, DROP_TTL_EXPIRED);
	p->to_vni = walk->vni;
	p->to_policy = walk->policy;
	w->tos = new_inner_tos(p);
	w->tenant_key = p->tenant_key;
	filter_fill(w, p, e);
	if (w->policy & TUNNY_POLICY_FILTER)
		end = tunny_filter(p->ctx, w);
	if (!end)
		end = tunny_leave(p->ctx, w);
	if (end >= 0)
		return end;
	if (tunny_flow.chunks)
		remember_line(p, w, walk);
	count_ingress(p);
	count_sent(p->stats, p->end, w->frame);
	return end;
}

#endif

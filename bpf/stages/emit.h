/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * emit: counters, and where packets leave. Every packet comes through exactly one of forward, punt, drop and pass.
 *
 * A packet is counted for its tenant once. A punted one is counted here if the metadata names the tenant, which tells the
 * software path that it is counted already; a driver without metadata leaves it to the software path, as tc does.
 */
#ifndef TUNNY_EMIT_H
#define TUNNY_EMIT_H

#include "punt.h"
#include "../framing/qinq.h"

/* Every end but forwarding. A global function: verified once, not for each caller. */
__noinline int tunny_finish(struct frame_ctx *ctx, const struct end *e, int verdict)
{
	struct exit x = exit_of(ctx);

	if (!e || !x.root || !x.stats)
		return XDP_PASS;
	/* Whoever sees it sees it as it came. */
#ifndef TUNNY_SKB
	if (unlikely(e->tag_bytes) && (verdict >= PUNT || x.root->options & TUNNY_OPT_CAPTURE_DROPS) && qinq_restore(ctx, e))
		return drop(&x, e, DROP_TX_FAILED);
#endif
	if (verdict == PASS) {
		x.stats->passed += packets_in(&e->segments);
		return XDP_PASS;
	}
	return verdict >= PUNT ? punt(&x, e, verdict - PUNT) : drop(&x, e, verdict);
}

/* How the frame leaves by a port; 0: not at all. */
static __always_inline int transmit(struct frame_ctx *ctx, __u32 ifindex)
{
	int action;

#ifndef TUNNY_SKB
	if (ifindex == port_of(ctx) && !READ_ONCE(tunny_redirect_back))
		return XDP_TX;
#endif
	action = redirect(&tunny_ports, ifindex);
	return action == XDP_REDIRECT ? action : 0;
}

/* Sends the packet on. Negative: how; else it was not sent. */
static __always_inline int emit(struct packet *p)
{
	int action = transmit(p->ctx, p->nexthop->ifindex);

	if (!action)
		return DROP_TX_FAILED;
	count_ingress(p);
	count_vm(p);
	count_sent(p->stats, p->end, p->bytes);
	return -action;
}

/* Sends a frame on by a port; its VPC is the one that was entered. Negative: how; else it was not sent. */
static __always_inline int emit_frame(struct frame_ctx *ctx, const struct end *e, __u32 ifindex, __u32 bytes)
{
	struct exit x = exit_of(ctx);
	int action;

	if (!x.root || !x.stats)
		return DROP_TABLE_FAULT;
	action = transmit(ctx, ifindex);
	if (!action)
		return DROP_TX_FAILED;
	count_accepted(&x, e);
	count_sent(x.stats, e, bytes);
	return -action;
}

#endif

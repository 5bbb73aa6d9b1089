/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The packet path, one line a stage; serve() has the order. docs/design/packet-path.md is its specification, the Rust path its reference. A
 * framing (framing/) lays a packet bare and wraps what is sent; stages are in stages/, what they look into in tables/ and states/. It runs in
 * XDP (gateway.bpf.c) and in tc (switch.bpf.c).
 */
#ifndef TUNNY_PATH_H
#define TUNNY_PATH_H

#include "framing/framing.h"
#include "framing/qinq.h"
#include "framing/vmport.h"
#include "stages/prefetch.h"
#include "stages/parse.h"
#include "stages/tenant.h"
#include "stages/route.h"
#include "stages/nat.h"
#include "stages/filter.h"
#include "stages/locate.h"
#include "stages/meter.h"
#include "stages/rewrite.h"
#include "stages/emit.h"
#include "stages/line.h"
#include "stages/near.h"

/* A verdict of tunny_edge alone: the port is none of the edge's, and no VM's. */
#define NO_EDGE (PASS + 2)

/* Takes the packet in. PASS while the table memory is not ready. */
static __always_inline int enter(struct packet *p)
{
	/* A key of its own: a pointer into *p would keep all of it out of registers. */
	__u32 slot = cpu_number();

	p->slot = slot;
	p->root = map_value(&tunny_root, 0);
	p->stats = map_value(&tunny_stats, slot);
	if (!p->root || !p->stats)
		return -1;
	p->bytes = frame_bytes(p->ctx);
	p->stats->rx++;
	p->stats->rx_bytes += p->bytes;
	p->options = READ_ONCE(p->root->options);
	sample(p);
	if (unlikely(p->options & TUNNY_OPT_INLINE))
		return PASS;
	return READ_ONCE(p->root->magic) == TUNNY_ROOT_MAGIC ? GO : PASS;
}

/* What came in a tunnel and is laid bare. Negative: sent on, and how. */
static __always_inline int serve(struct packet *p, struct end *e)
{
	int end = parse_inner(p);

	if (unlikely(end)) {
		if (p->edge && end == (p->inner_v6 ? DROP_INNER_MULTICAST : DROP_INNER_BROADCAST) && e->guest)
			end = for_dhcp(p->ctx, p->inner_v6, end);
		if (end == PUNT + PUNT_NONLINEAR_HEADERS)
			return end;
		e->target_v6 = p->inner_v6;
		e->target_hi = p->inner_v6 ? p->dst_hi : 0;
		e->target_lo = p->dst_lo;
		end = tunny_refuse(e, end);
		return end == DROP_INNER_LINK_LOCAL ? tunny_own_address(e) : end;
	}
	if (p->edge)
		p->outer_tos = p->inner_tos;
	end = tenant(p, e);
	if (!end)
		end = nat(p);
	if (!end)
		end = line_verdict(p, e, nat_verdict(p, route(p)));
	if (!end)
		end = filter(p, e);
	if (!end) {
		end = locate(p);
		if (unlikely(end == DROP_UNDERLAY_NO_ROUTE))
			return near_verdict(p, e);
		filter_takes(p, end);
	}
	if (!end)
		end = meter(p);
	if (end)
		return end;
	if (tunny_flow.chunks && !(p->edge && e->guest))
		remember(p);
	end = rewrite(p);
	if (!end)
		end = encapsulate(p);
	if (!end)
		end = emit(p);
	return end;
}

/* The compiler makes a copy of the path for each framing and family, with constant offsets. */
static __always_inline int inner_packet(struct packet *p, struct end *e)
{
	int end = first_lines(p);
	__u16 type;

	if (end)
		return end;
	type = parse_inner_ethernet(p, &end);
	if (type == NET16(ETH_P_IP)) {
		p->inner_v6 = 0;
		return serve(p, e);
	}
	if (type == NET16(ETH_P_IPV6)) {
		p->inner_v6 = 1;
		return serve(p, e);
	}
	return end == PUNT + PUNT_NONLINEAR_HEADERS ? end : tunny_refuse(e, end);
}

static __always_inline int tunnel_packet(struct packet *p, struct end *e)
{
	int end = vxlan_decapsulate(p, e);

	return end ? end : inner_packet(p, e);
}

/*
 * What comes by the edge port of this number, or by a VM port if it is none. NO_EDGE: it came by another one. Negative: sent on, and how. A global
 * function as tunny_tunnel.
 */
__noinline int tunny_edge(struct frame_ctx *ctx, struct end *e, __u32 number)
{
	struct packet p = { .ctx = ctx, .end = e, .edge = 1, .sender_v6 = 0 };
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 word = 0, guest = 0;
	__u32 gateway = 0;
	int end;

	if (!root || !e)
		return NO_EDGE;
	if (number >= EDGE_PORTS) {
		word = vm_port(root, port_of(ctx), &guest);
		if (!word)
			return NO_EDGE;
	}
	end = enter(&p);
	if (end < 0)
		return PASS;
	if (!end && number >= EDGE_PORTS) {
		end = vmport_decapsulate(&p, e, word, guest);
		/* What the VM itself has made of the frame is counted for its VPC. */
		if (end == PUNT + PUNT_OFFLOADED || end == DROP_INNER_IP_MALFORMED)
			return tunny_refuse(e, end);
	}
#ifndef TUNNY_SKB
	else if (!end) {
		end = qinq_decapsulate(&p, e, number, &gateway);
		if (end == DROP_EDGE_MAC)
			return tunny_refuse(e, end);
	}
#endif
	if (!end && unlikely(gateway)) {
		int control = tunny_control(ctx, gateway);

		if (control)
			return control == PUNT + PUNT_NONLINEAR_HEADERS ? control : tunny_refuse(e, control);
	}
	return end ? end : inner_packet(&p, e);
}

/* What comes in a tunnel; a global function, so that what else the program does need not share its stack. */
__noinline int tunny_tunnel(struct frame_ctx *ctx, struct end *e)
{
	struct packet p = { .ctx = ctx, .end = e, .edge = 0 };
	int end = enter(&p);
	void *data = data_of(ctx);
	__u16 type;

	if (!e || end < 0)
		return PASS;
	if (end)
		return end;
	if (data + ETH_BYTES > end_of(ctx))
		return DROP_OUTER_TRUNCATED;
	if (tagged(ctx))
		return PASS;
	type = *(__u16 *)(data + 12);
	if (likely(type == NET16(ETH_P_IP))) {
		p.sender_v6 = 0;
		return tunnel_packet(&p, e);
	}
	if (type == NET16(ETH_P_IPV6)) {
		p.sender_v6 = 1;
		return tunnel_packet(&p, e);
	}
	return PASS;
}

#endif

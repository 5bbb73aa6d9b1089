/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The XDP fast path: the packet path, one line a stage; serve() has the order. docs/design/packet-path.md is its specification, the Rust
 * path its reference; docs/design/xdp.md explains its costs. A framing (framing/) lays a packet bare and wraps what is sent; stages are in
 * stages/, what they look into in tables/ and states/.
 */
#include "framing/framing.h"
#include "framing/inline.h"
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
#include "stages/cached.h"

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
		if (end == PUNT + PUNT_NONLINEAR_HEADERS)
			return end;
		if (p->edge && end == DROP_INNER_BROADCAST && e->guest && !p->inner_v6 && asks_dhcp(p->ctx))
			end = PUNT + PUNT_VM_DHCP;
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
__noinline int tunny_edge(struct xdp_md *ctx, struct end *e, __u32 number)
{
	struct packet p = { .ctx = ctx, .end = e, .edge = 1, .sender_v6 = 0 };
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 word = 0, guest = 0;
	__u32 gateway = 0;
	int end;

	if (!root || !e)
		return NO_EDGE;
	if (number >= EDGE_PORTS) {
		word = vm_port(root, ctx->ingress_ifindex, &guest);
		if (!word)
			return NO_EDGE;
	}
	end = enter(&p);
	if (end < 0)
		return PASS;
	if (!end)
		end = number < EDGE_PORTS ? qinq_decapsulate(&p, e, number, &gateway) : vmport_decapsulate(&p, e, word, guest);
	if (!end && unlikely(gateway)) {
		int control = tunny_control(ctx, gateway);

		if (control)
			return control == PUNT + PUNT_NONLINEAR_HEADERS ? control : tunny_refuse(e, control);
	}
	return end ? end : inner_packet(&p, e);
}

/* What comes in a tunnel; a global function, so that what else the program does need not share its stack. */
__noinline int tunny_tunnel(struct xdp_md *ctx, struct end *e)
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

/* A frame between the ports of an inline pair. PASS: its port is in none. Negative: sent on, and how. A global function as tunny_tunnel. */
__noinline int tunny_inline(struct xdp_md *ctx, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct flow *w = map_value(&tunny_flows, 0);
	int end, judged;

	if (!root || !w || !e || READ_ONCE(root->magic) != TUNNY_ROOT_MAGIC)
		return PASS;
	end = tunny_inline_decapsulate(ctx, w, e);
	judged = !end;
	if (judged)
		end = filter_server(ctx, w);
	if (end && end != UNJUDGED)
		return end;
	end = inline_encapsulate(w);
	if (judged && end < PUNT)
		connection_takes(w);
	if (!end && judged && w->server == SERVER_SENDS)
		end = meter_vpc(root, w->tenant_key, e->inner_bytes);
	return end ? end : emit_frame(ctx, e, w->egress, w->frame);
}

/* What comes in no tunnel: for a public address, or on a port of a pair. */
static __always_inline int plain_packet(struct xdp_md *ctx, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);

	if (root && unlikely(READ_ONCE(root->options) & TUNNY_OPT_INLINE))
		return tunny_inline(ctx, e);
	return nat_in(ctx, e);
}

/* The flow cache is to be asked, and is told what the stages decide. */
static __always_inline int ask_cache(struct flow_miss *miss)
{
	if (!miss)
		return 0;
	miss->place = 0;
	miss->ready = 0;
	return likely(!flow_passes_by(miss));
}

/* How the program ends with what the stages say; what they decided is noted. */
static __always_inline int ended(struct xdp_md *ctx, struct end *e, const struct flow_miss *miss, int end)
{
	if (tunny_flow.chunks && end < 0 && miss && miss->ready)
		tunny_flow_note();
	return likely(end < 0) ? -end : tunny_finish(ctx, e, end);
}

/* A frame that came by the edge port of this number: how the program ends. */
static __always_inline int edge_frame(struct xdp_md *ctx, struct end *e, __u32 number)
{
	struct flow_miss *miss = NULL;
	int end = 0;

	if (tunny_flow.chunks) {
		miss = map_value(&tunny_flow_misses, 0);
		if (ask_cache(miss))
			end = tunny_cached_edge(ctx, number);
		if (end > 0)
			return end;
		if (end < 0)
			return tunny_finish(ctx, e, -end);
	}
	__builtin_memset(e, 0, sizeof(*e));
	end = tunny_edge(ctx, e, number);
	return ended(ctx, e, miss, end);
}

/* The loader adds BPF_F_XDP_HAS_FRAGS where the kernel redirects frames of several buffers. */
SEC("xdp")
int tunny_gateway(struct xdp_md *ctx)
{
	struct flow_miss *miss = NULL;
	struct tunny_root *root;
	struct end *e;
	__u32 number;
	int end;

	e = map_value(&tunny_ends, 0);
	root = map_value(&tunny_root, 0);
	if (!e || !root)
		return XDP_PASS;
	/* Before anything else: what a customer sends is no tunnel, whatever it looks like. */
	if (unlikely(READ_ONCE(root->circuits))) {
		number = edge_port(root, ctx->ingress_ifindex);
		if (number < EDGE_PORTS)
			return edge_frame(ctx, e, number);
		__builtin_memset(e, 0, sizeof(*e));
		end = tunny_edge(ctx, e, number);
		if (end != NO_EDGE)
			return ended(ctx, e, NULL, end);
	}
	if (tunny_flow.chunks) {
		miss = map_value(&tunny_flow_misses, 0);
		end = ask_cache(miss) ? tunny_cached(ctx) : 0;
		if (end == PASS)
			end = tunny_cached_in(ctx);
		if (end > 0)
			return end;
		if (end < 0)
			return tunny_finish(ctx, e, -end);
	}
	__builtin_memset(e, 0, sizeof(*e));
	end = tunny_tunnel(ctx, e);
	if (unlikely(end == PASS))
		end = plain_packet(ctx, e);
	return ended(ctx, e, miss, end);
}

/*
 * Tells the counts of the lines in one chunk of this CPU's flow cache, whose number is the frame's first word, and returns how many of them
 * are in use. User space runs it on each CPU before it reads the counts of VPCs and VMs.
 */
SEC("xdp")
int tunny_gather(struct xdp_md *ctx)
{
	void *p = front(ctx);
	struct tunny_flow_line *lines;
	__u32 cpu = cpu_number(), chunk, *used;
	__u64 rest;

	if (p + 8 > behind(ctx))
		return 0;
	chunk = *(__u32 *)p;
	/* In the frame, of which 6.1's verifier keeps no account: it would walk the loop for each number. */
	used = p + 4;
	*used = 0;
	if (chunk >= tunny_flow.chunks)
		return 0;
	lines = flow_chunk(cpu, chunk);
	for (__u32 i = 0; lines && i < TUNNY_FLOW_CHUNK_LINES; i++) {
		rest = READ_ONCE(lines[i].rest);
		*used += (rest | -rest) >> 63;
		if (READ_ONCE(lines[i].count))
			tunny_flow_tell(lines + i, cpu);
	}
	return *used;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The XDP fast path: the packet path, one line a stage; serve() has the order. docs/design/packet-path.md is its specification, the Rust
 * path its reference; docs/design/xdp.md explains its costs. Stages are in stages/, what they look into in tables/.
 */
#include "stages/parse.h"
#include "stages/tenant.h"
#include "stages/route.h"
#include "stages/locate.h"
#include "stages/meter.h"
#include "stages/rewrite.h"
#include "stages/emit.h"
#include "stages/nat.h"
#include "stages/filter.h"
#include "stages/wires.h"

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
	if (unlikely(p->options & TUNNY_OPT_WIRES))
		return PASS;
	return READ_ONCE(p->root->magic) == TUNNY_ROOT_MAGIC ? GO : PASS;
}

/* From the tenant to the wire. GO: sent on, *action says how. */
static __always_inline int serve(struct packet *p, struct end *e, int *action)
{
	int end = parse_inner(p);

	if (unlikely(end)) {
		if (end == PUNT + PUNT_NONLINEAR_HEADERS)
			return end;
		e->target_v6 = p->inner_v6;
		e->target_hi = p->inner_v6 ? p->dst_hi : 0;
		e->target_lo = p->dst_lo;
		end = tunny_refuse(e, end);
		return end == DROP_INNER_LINK_LOCAL ? tunny_own_address(e) : end;
	}
	end = tenant(p, e);
	if (!end)
		end = nat(p);
	if (!end)
		end = nat_verdict(p, route(p));
	if (!end)
		end = filter(p, e);
	if (!end)
		end = locate(p);
	if (!end)
		end = meter(p);
	if (!end)
		end = rewrite(p);
	if (!end)
		end = emit(p, action);
	return end;
}

/* From the wire to the tenant. The compiler makes a copy of the path for each pair of families, with constant offsets. */
static __always_inline int tunnel_packet(struct packet *p, struct end *e, int *action)
{
	int end = parse_outer(p, e);
	__u16 type;

	if (end)
		return end;
	type = parse_inner_ethernet(p, &end);
	if (type == NET16(ETH_P_IP)) {
		p->inner_v6 = 0;
		return serve(p, e, action);
	}
	if (type == NET16(ETH_P_IPV6)) {
		p->inner_v6 = 1;
		return serve(p, e, action);
	}
	return end == PUNT + PUNT_NONLINEAR_HEADERS ? end : tunny_refuse(e, end);
}

/* What comes in a tunnel; a global function, so that what else the program does need not share its stack. */
__noinline int tunny_tunnel(struct xdp_md *ctx, struct end *e)
{
	struct packet p = { .ctx = ctx };
	int action = XDP_PASS, end = enter(&p), type;

	if (!e || end < 0)
		return PASS;
	if (!end) {
		type = outer_type(&p);
		if (likely(type == NET16(ETH_P_IP))) {
			p.outer_v6 = 0;
			end = tunnel_packet(&p, e, &action);
		} else if (type == NET16(ETH_P_IPV6)) {
			p.outer_v6 = 1;
			end = tunnel_packet(&p, e, &action);
		} else {
			end = type < 0 ? DROP_OUTER_TRUNCATED : PASS;
		}
	}
	return end ? end : -action;
}

/* What comes in no tunnel: for a public address, or on a wire. */
static __always_inline int plain(struct xdp_md *ctx, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);

	if (root && unlikely(READ_ONCE(root->options) & TUNNY_OPT_WIRES))
		return READ_ONCE(root->magic) == TUNNY_ROOT_MAGIC ? tunny_wire(ctx, e) : PASS;
	return nat_in(ctx, e);
}

/* The loader adds BPF_F_XDP_HAS_FRAGS where the kernel redirects frames of several buffers. */
SEC("xdp")
int tunny_gateway(struct xdp_md *ctx)
{
	struct end *e = map_value(&tunny_ends, 0);
	int end;

	if (!e)
		return XDP_PASS;
	__builtin_memset(e, 0, sizeof(*e));
	end = tunny_tunnel(ctx, e);
	if (unlikely(end == PASS))
		end = plain(ctx, e);
	return likely(end < 0) ? -end : tunny_finish(ctx, e, end);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The XDP fast path: path.h, inline pairs, and a flow cache in front of both. docs/design/xdp.md explains its costs. */
#include "path.h"
#include "framing/inline.h"
#include "stages/cached.h"

/* A frame between the ports of an inline pair. PASS: its port is in none. Negative: sent on, and how. A global function as tunny_tunnel. */
__noinline int tunny_inline(struct frame_ctx *ctx, struct end *e)
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
		end = meter_vpc(root, w->tenant_key, e->inner_bytes, 1);
	return end ? end : emit_frame(ctx, e, w->egress, w->frame);
}

/* What comes in no tunnel: for a public address, or on a port of a pair. */
static __always_inline int plain_packet(struct frame_ctx *ctx, struct end *e)
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
static __always_inline int ended(struct frame_ctx *ctx, struct end *e, const struct flow_miss *miss, int end)
{
	if (tunny_flow.chunks && end < 0 && miss && miss->ready)
		tunny_flow_note();
	return likely(end < 0) ? -end : tunny_finish(ctx, e, end);
}

/* A frame that came by the edge port of this number: how the program ends. */
static __always_inline int edge_frame(struct frame_ctx *ctx, struct end *e, __u32 number)
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
int tunny_gateway(struct frame_ctx *ctx)
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
		number = edge_port(root, port_of(ctx));
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
int tunny_gather(struct frame_ctx *ctx)
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

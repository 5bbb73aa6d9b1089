/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * emit: counters and the ways out. Every packet comes through exactly one of forward, punt, drop and pass.
 *
 * The tenant's counter is added to when the packet ends here. A punted packet is counted by the software path, which
 * sees it from its first byte; so it is counted once.
 */
#ifndef TUNNY_EMIT_H
#define TUNNY_EMIT_H

#include "packet.h"
#include "../tables/meter.h"

/* Copies the packet into the event ring. Only called when an option asks for it. */
__noinline int tunny_capture(struct xdp_md *ctx, __u32 kind, __u32 reason, __u32 vni)
{
	__u32 bytes = bpf_xdp_get_buff_len(ctx), captured = bytes;
	struct tunny_event *e = bpf_ringbuf_reserve(&tunny_events, sizeof(*e), 0);

	if (!e)
		return 0;
	if (captured > TUNNY_EVENT_BYTES)
		captured = TUNNY_EVENT_BYTES;
	e->time = bpf_ktime_get_ns();
	e->ifindex = ctx->ingress_ifindex;
	e->vni = vni;
	e->length = bytes;
	e->kind = kind;
	e->reason = reason;
	e->reserved = 0;
	e->captured = captured;
	if (captured && captured <= TUNNY_EVENT_BYTES && bpf_xdp_load_bytes(ctx, 0, e->data, captured) < 0)
		e->captured = 0;
	bpf_ringbuf_submit(e, 0);
	return 0;
}

static __always_inline void sample(struct packet *p)
{
	__u32 exponent = p->options >> TUNNY_OPT_SAMPLE_SHIFT & 0xff;

	if (unlikely(exponent) && !(bpf_get_prandom_u32() & ((1ULL << (exponent & 31)) - 1)))
		tunny_capture(p->ctx, TUNNY_EVENT_SAMPLE, 0, 0);
}

static __always_inline void count_tenant(struct packet *p)
{
	struct tunny_tenant_counter *c;
	void *line;

	if (!p->accepted || p->slot >= p->root->xdp_slots)
		return;
	line = line_at(p->tenant_line + TUNNY_TENANT_COUNTERS_LINE + p->slot / 4);
	if (!line)
		return;
	c = line + (p->slot & 3) * sizeof(*c);
	c->packets++;
	c->bytes += p->inner_bytes;
}

static __always_inline void count_vm(struct packet *p)
{
	__u32 line = cell_line(p->root, p->vm.id);
	struct tunny_vm_cells *cells;
	__u64 before;

	if (!line)
		return;
	cells = line_at(line);
	if (!cells)
		return;
	before = __sync_fetch_and_add(&cells->packed[p->vm.id & 7],
				      1ULL << TUNNY_CELL_PACKETS_SHIFT | p->inner_bytes);
	if (unlikely(before & TUNNY_CELL_SPILL_MASK))
		tunny_spill_cell(line, p->vm.id & 7);
}

static __always_inline int drop(struct packet *p, __u32 reason)
{
	p->stats->dropped++;
	p->stats->drops[reason & 63]++;
	count_tenant(p);
	if (p->attributed && tunny_count_drop(p->root->drops, p->root->salt, p->vni, reason))
		p->stats->drop_overflow++;
	if (unlikely(p->options & TUNNY_OPT_CAPTURE_DROPS))
		tunny_capture(p->ctx, TUNNY_EVENT_DROP, reason, p->vni);
	return XDP_DROP;
}

/* Two budgets: the tenant's, so that one cannot starve the others, and the total. */
static __always_inline int punt_allowed(struct packet *p, __u64 now)
{
	if (p->accepted) {
		struct tunny_tenant_state *state = line_at(p->tenant_line + 1);

		if (state && !rate_limit(p->root->punt_limit_tenant, &state->punt_tat, now))
			return 0;
	}
	return rate_limit(p->root->punt_limit_total, &p->root->punt_total_tat, now);
}

/* Writes struct tunny_punt_meta in front of the packet. A driver without metadata costs the software path a parse. */
static __always_inline void write_meta(struct packet *p, __u32 reason, __u64 now)
{
	struct tunny_punt_meta *meta;

	if (bpf_xdp_adjust_meta(p->ctx, -(int)sizeof(*meta)))
		return;
	meta = (void *)(long)p->ctx->data_meta;
	if ((void *)(meta + 1) > data_of(p->ctx))
		return;
	meta->magic = TUNNY_PUNT_MAGIC;
	meta->reason = reason;
	meta->flags = 0;
	meta->inner_offset = p->inner_at;
	meta->vni = p->vni;
	meta->ifindex = p->ctx->ingress_ifindex;
	meta->time = now;
	meta->tenant = p->tenant_line;
	meta->reserved = 0;
}

static __always_inline int punt(struct packet *p, __u32 reason)
{
	__u32 ifindex = p->ctx->ingress_ifindex, queue = p->ctx->rx_queue_index;
	__u32 *slot = bpf_map_lookup_elem(&tunny_port_slots, &ifindex);
	__u64 now = bpf_ktime_get_ns();

	if (!punt_allowed(p, now))
		return drop(p, DROP_PUNT_LIMITED);
	if (!slot || queue >= TUNNY_QUEUES_MAX ||
	    bpf_redirect_map(&tunny_xsks, *slot * TUNNY_QUEUES_MAX + queue, XDP_DROP) != XDP_REDIRECT)
		return drop(p, DROP_PUNT_NO_LISTENER);
	if (unlikely(p->options & TUNNY_OPT_CAPTURE_PUNTS))
		tunny_capture(p->ctx, TUNNY_EVENT_PUNT, reason, p->vni);
	write_meta(p, reason, now);
	count_tenant(p); /* the software path does not, if the metadata names the tenant */
	p->stats->punted++;
	p->stats->punts[reason & (PUNT_REASONS - 1)]++;
	return XDP_REDIRECT;
}

static __always_inline int finish(struct packet *p, int verdict)
{
	if (verdict == PASS) {
		p->stats->passed++;
		return XDP_PASS;
	}
	if (verdict >= PUNT)
		return punt(p, verdict - PUNT);
	return drop(p, verdict);
}

static __always_inline int emit(struct packet *p)
{
	__u32 ifindex = p->nexthop->ifindex;
	int action = XDP_TX;

	if (ifindex != p->ctx->ingress_ifindex || READ_ONCE(tunny_redirect_back)) {
		action = bpf_redirect_map(&tunny_ports, ifindex, XDP_DROP);
		if (action != XDP_REDIRECT)
			return drop(p, DROP_TX_FAILED);
	}
	count_tenant(p);
	count_vm(p);
	p->stats->forwarded++;
	p->stats->forwarded_bytes += p->inner_at + p->inner_bytes;
	return action;
}

#endif

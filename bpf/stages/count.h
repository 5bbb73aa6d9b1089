/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What every end of a packet needs: captures, counts of VPCs and VMs, drops. */
#ifndef TUNNY_COUNT_H
#define TUNNY_COUNT_H

#include "../packet.h"
#include "../tables/meter.h"

/* Copies the packet into the event ring. Only called when an option asks for it. */
__noinline int tunny_capture(struct frame_ctx *ctx, __u32 kind, __u32 reason, __u32 vni)
{
	__u32 bytes = buffers_bytes(ctx), captured = bytes;
	struct tunny_event *e = reserve_event(&tunny_events, sizeof(*e));

	if (!e)
		return 0;
	if (captured > TUNNY_EVENT_BYTES)
		captured = TUNNY_EVENT_BYTES;
	e->time = time_ns();
	e->ifindex = port_of(ctx);
	e->vni = vni;
	e->length = bytes;
	e->kind = kind;
	e->reason = reason;
	e->reserved = 0;
	e->captured = captured;
	/* Says 1 to 256 in a form that the verifier of 6.1 understands, too. */
	captured -= 1;
	OPAQUE(captured);
	captured = (captured & (TUNNY_EVENT_BYTES - 1)) + 1;
	if (copy_out(ctx, 0, e->data, captured) < 0)
		e->captured = 0;
	submit_event(e);
	return 0;
}

static __always_inline void sample(struct packet *p)
{
	__u32 exponent = p->options >> TUNNY_OPT_SAMPLE_SHIFT & 0xff;

	if (unlikely(exponent) && !(random_number() & ((1ULL << (exponent & 31)) - 1)))
		tunny_capture(p->ctx, TUNNY_EVENT_SAMPLE, 0, 0);
}

/* The word of a tenant and slot was `before` an addition: carries it over if it was full. */
static __always_inline void carry_tenant(const struct tunny_root *root, __u32 id, __u32 slot, __u64 before)
{
	if (unlikely(before & TUNNY_CELL_SPILL_MASK))
		tunny_carry(tenant_words_line(root, id / 8, slot), tenant_record(root, id) + (1 << TUNNY_TENANT_CHUNK_SHIFT),
			    (id & 7) | 2 << 3);
}

/* What a frame counts for its VPC and its VM: the packets that it stands for, and their inner bytes. */
static __always_inline __u64 counted(const struct end *e)
{
	return packets_in(&e->segments) << TUNNY_CELL_PACKETS_SHIFT | bytes_in(&e->segments, e->inner_bytes, 0);
}

/* A word that belongs to the slot alone takes a plain addition; if there are more slots than words, an atomic one. */
static __always_inline void count_tenant(const struct tunny_root *root, __u64 *cells, __u32 id, __u32 slot, __u64 add)
{
	__u64 before, *cell = cells + (id & 7);

	if (tunny_probes.only)
		return;
	if (unlikely(root->slots > root->tenant_words)) {
		before = __sync_fetch_and_add(cell, add);
	} else {
		before = *cell;
		*cell = before + add;
	}
	carry_tenant(root, id, slot, before);
}

/* Adds a CELL word to the count of a VM. */
static __always_inline void add_to_vm(const struct tunny_root *root, __u32 id, __u64 add)
{
	__u32 line = cell_line(root, id >> 3);
	struct tunny_vm_cells *cells = line ? line_at(line) : NULL;
	__u64 before;

	if (!cells || tunny_probes.only)
		return;
	before = __sync_fetch_and_add(&cells->packed[id & 7], add);
	if (unlikely(before & TUNNY_CELL_SPILL_MASK))
		tunny_carry(line, line + (1 << (TUNNY_VM_CHUNK_SHIFT - 3)), (id & 7) * 9);
}

static __always_inline void count_vm(struct packet *p)
{
	add_to_vm(p->root, p->vm.id, counted(p->end));
}

/* Counts the packet for its tenant, by the CPU's own slot. */
static __always_inline void count_ingress(struct packet *p)
{
	__u32 id = tenant_id(p->tenant_key), line = tenant_words_line(p->root, id / 8, p->slot);
	__u64 *cells = line ? line_at(line) : NULL;

	if (p->tenant_key && cells && p->slot < p->root->xdp_slots)
		count_tenant(p->root, cells, id, p->slot, counted(p->end));
}

/* What emit looks up again: they are not taken often, and the hot path need not carry it. */
struct exit {
	struct frame_ctx *ctx;
	struct tunny_root *root;
	struct tunny_stats *stats;
	__u32 slot;
};

static __always_inline struct exit exit_of(struct frame_ctx *ctx)
{
	__u32 slot = cpu_number();
	struct exit x = { .ctx = ctx, .root = map_value(&tunny_root, 0), .stats = map_value(&tunny_stats, slot), .slot = slot };

	return x;
}

static __always_inline void count_accepted(struct exit *x, const struct end *e)
{
	__u64 *cells;
	__u32 line;

	if (e->admission != ACCEPTED || x->slot >= x->root->xdp_slots)
		return;
	line = tenant_words_line(x->root, e->tenant / 8, x->slot);
	cells = line ? line_at(line) : NULL;
	if (cells)
		count_tenant(x->root, cells, e->tenant, x->slot, counted(e));
}

static __always_inline int drop(struct exit *x, const struct end *e, __u32 reason)
{
	__u64 options = x->root->options;

	__u64 packets = packets_in(&e->segments);

	x->stats->dropped += packets;
	x->stats->drops[reason & (DROP_REASONS - 1)] += packets;
	count_accepted(x, e);
	if (e->admission != STRANGER && !tunny_probes.only && tunny_count_drop(x->root->drops, x->root->salt, e->vni, reason, packets))
		x->stats->drop_overflow += packets;
	if (unlikely(options & TUNNY_OPT_CAPTURE_DROPS))
		tunny_capture(x->ctx, TUNNY_EVENT_DROP, reason, e->admission == OF_CUSTOMER ? 0 : e->vni);
	return XDP_DROP;
}

static __always_inline struct tunny_tenant_state *tenant_state(struct exit *x, const struct end *e)
{
	__u32 record = e->admission == STRANGER || e->admission == OF_CUSTOMER ? 0 : tenant_record(x->root, e->tenant);

	return record ? line_at(record + (1 << TUNNY_TENANT_CHUNK_SHIFT)) : NULL;
}

static __always_inline void count_forwarded(struct tunny_stats *stats, __u64 packets, __u32 bytes)
{
	stats->forwarded += packets;
	stats->forwarded_bytes += bytes;
}

/* A frame was sent on, of so many bytes. */
static __always_inline void count_sent(struct tunny_stats *stats, const struct end *e, __u32 bytes)
{
	count_forwarded(stats, packets_in(&e->segments), bytes_in(&e->segments, bytes, bytes - e->inner_bytes));
}

#endif

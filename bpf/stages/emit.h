/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * emit: counters, and where packets leave. Every packet comes through exactly one of forward, punt, drop and pass.
 *
 * A packet is counted for its tenant once. A punted one is counted here if the metadata names the tenant, which tells the
 * software path that it is counted already; a driver without metadata leaves it to the software path.
 */
#ifndef TUNNY_EMIT_H
#define TUNNY_EMIT_H

#include "../packet.h"
#include "../framing/qinq.h"
#include "../tables/meter.h"

/* Copies the packet into the event ring. Only called when an option asks for it. */
__noinline int tunny_capture(struct xdp_md *ctx, __u32 kind, __u32 reason, __u32 vni)
{
	__u32 bytes = buffers_bytes(ctx), captured = bytes;
	struct tunny_event *e = reserve_event(&tunny_events, sizeof(*e));

	if (!e)
		return 0;
	if (captured > TUNNY_EVENT_BYTES)
		captured = TUNNY_EVENT_BYTES;
	e->time = time_ns();
	e->ifindex = ctx->ingress_ifindex;
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

/* A word that belongs to the slot alone takes a plain addition; if there are more slots than words, an atomic one. */
static __always_inline void count_tenant(const struct tunny_root *root, __u64 *cells, __u32 id, __u32 slot, __u32 bytes)
{
	__u64 before, add = 1ULL << TUNNY_CELL_PACKETS_SHIFT | bytes, *cell = cells + (id & 7);

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
	add_to_vm(p->root, p->vm.id, 1ULL << TUNNY_CELL_PACKETS_SHIFT | p->end->inner_bytes);
}

/* Counts the packet for its tenant, by the CPU's own slot. */
static __always_inline void count_ingress(struct packet *p)
{
	__u32 id = tenant_id(p->tenant_key), line = tenant_words_line(p->root, id / 8, p->slot);
	__u64 *cells = line ? line_at(line) : NULL;

	if (p->tenant_key && cells && p->slot < p->root->xdp_slots)
		count_tenant(p->root, cells, id, p->slot, p->end->inner_bytes);
}

/* What emit looks up again: they are not taken often, and the hot path need not carry it. */
struct exit {
	struct xdp_md *ctx;
	struct tunny_root *root;
	struct tunny_stats *stats;
	__u32 slot;
};

static __always_inline struct exit exit_of(struct xdp_md *ctx)
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
		count_tenant(x->root, cells, e->tenant, x->slot, e->inner_bytes);
}

static __always_inline int drop(struct exit *x, const struct end *e, __u32 reason)
{
	__u64 options = x->root->options;

	x->stats->dropped++;
	x->stats->drops[reason & (DROP_REASONS - 1)]++;
	count_accepted(x, e);
	if (e->admission != STRANGER && !tunny_probes.only && tunny_count_drop(x->root->drops, x->root->salt, e->vni, reason))
		x->stats->drop_overflow++;
	if (unlikely(options & TUNNY_OPT_CAPTURE_DROPS))
		tunny_capture(x->ctx, TUNNY_EVENT_DROP, reason, e->vni);
	return XDP_DROP;
}

static __always_inline struct tunny_tenant_state *tenant_state(struct exit *x, const struct end *e)
{
	__u32 record = e->admission == STRANGER ? 0 : tenant_record(x->root, e->tenant);

	return record ? line_at(record + (1 << TUNNY_TENANT_CHUNK_SHIFT)) : NULL;
}

/*
 * What is served in software, also because it is shaped, has a meter of its own, so that it takes no part of what others begin connections
 * with. Above it a VPC may still have next to nothing in the ring (enter_ring), so that one that floods does not stop the others.
 */
static __always_inline int software_scarce(struct tunny_root *root, __u64 now)
{
	return !rate_limit(root->software_limit, &root->software_tat, now);
}

/* N + 1 meters: one of all punts together, one of each tenant. A packet whose tenant is not known counts as yellow. */
static __always_inline int punt_allowed(struct exit *x, const struct end *e, __u64 now)
{
	struct tunny_root *root = x->root;
	struct tunny_tenant_state *state = tenant_state(x, e);
	int total = packet_color(root->punt_limit_total, root->punt_peak_total, &root->punt_total_tat,
				 &root->punt_total_peak_tat, now);

	if (!state)
		return punt_passes(total, YELLOW);
	if (!punt_passes(total, packet_color(root->punt_limit_tenant, root->punt_peak_tenant, &state->punt_tat,
					     &state->punt_peak_tat, now))) {
		__sync_fetch_and_add(&state->punts_limited, 1);
		return 0;
	}
	__sync_fetch_and_add(&state->punts, 1);
	return 1;
}

/* Of packets of no tenant, those for one destination share. */
static __always_inline __u32 other_share(struct xdp_md *ctx)
{
	void *data = data_of(ctx);
	__u32 word;

	if (data + ETH_BYTES + IPV6_BYTES > end_of(ctx))
		return 0;
	word = *(__u16 *)(data + 12) == NET16(ETH_P_IPV6) ? load_be32(data + ETH_BYTES + 36) : load_be32(data + ETH_BYTES + 16);
	return (word * 0x9e3779b1u) >> 29;
}

/*
 * Shares of a ring. A tenant may have as many packets in it as are free (dynamic thresholds, Choudhury and Hahne 1998), not counting the last
 * eighth: one that floods gets nearly half, n of them an n + 1st part each. The eighth is for those who have next to nothing in it. `mine` is
 * what a tenant has in all rings. Returns whether the packet may go in; it is entered then, and the software path takes it out of both words.
 * scarce: next to nothing is all there is.
 */
static __always_inline int enter_ring(struct tunny_root *root, __u64 *ring, __u64 *mine, int scarce)
{
	__u64 room = READ_ONCE(*ring), epoch = READ_ONCE(root->punt_epoch) << TUNNY_PUNT_EPOCH_SHIFT;
	__u64 entries = room >> 32, used = room & 0xffffffff, least = (entries >> 9) + 1, most;

	if (used >= entries)
		return 0;
	most = entries - (entries >> 3) > used ? entries - (entries >> 3) - used : 0;
	if (most < least || scarce)
		most = least;
	for (int i = 0; i < 4; i++) {
		__u64 old = READ_ONCE(*mine), used = old >> TUNNY_PUNT_EPOCH_SHIFT << TUNNY_PUNT_EPOCH_SHIFT == epoch ? old & 0xffffffff : 0;

		if (used >= most)
			return 0;
		if (__sync_val_compare_and_swap(mine, old, epoch | (used + 1)) == old)
			break;
	}
	__sync_fetch_and_add(ring, 1);
	return 1;
}

/* Writes struct tunny_punt_meta in front of the packet. 0: the driver knows no metadata. */
static __always_inline int write_meta(struct xdp_md *ctx, const struct end *e, __u32 tenant, __u32 share, __u32 reason, __u64 now)
{
	struct tunny_punt_meta *meta = make_meta(ctx, sizeof(*meta));

	if (!meta)
		return 0;
	meta->magic = TUNNY_PUNT_MAGIC;
	meta->reason = reason;
	meta->flags = 0;
	meta->inner_offset = e->inner_at;
	meta->vni = e->vni;
	meta->ifindex = ctx->ingress_ifindex;
	meta->time = now;
	meta->tenant = tenant;
	meta->share = share;
	return 1;
}

static __always_inline int punt(struct exit *x, const struct end *e, __u32 reason)
{
	__u32 ifindex = x->ctx->ingress_ifindex, queue = x->ctx->rx_queue_index;
	__u32 *slot = map_value(&tunny_port_slots, ifindex), share = 0, tenant = 0, at;
	struct tunny_tenant_state *state = tenant_state(x, e);
	__u64 now = time_ns(), *mine = NULL;
	int path = reason == PUNT_PATH_SOFTWARE || reason == PUNT_SHAPED, scarce = 0;

	if (!tunny_probes.only) {
		scarce = path ? software_scarce(x->root, now) : !punt_allowed(x, e, now);
		if (scarce && !path)
			return drop(x, e, DROP_PUNT_LIMITED);
	}
	if (!slot || queue >= TUNNY_QUEUES_MAX ||
	    redirect(&tunny_xsks, *slot * TUNNY_QUEUES_MAX + queue) != XDP_REDIRECT)
		return drop(x, e, DROP_PUNT_NO_LISTENER);
	at = *slot * TUNNY_QUEUES_MAX + queue;
	if (!tunny_probes.only && at < TUNNY_PORTS_MAX * TUNNY_QUEUES_MAX && READ_ONCE(x->root->punt_rings[at]) >> 32) {
		if (state) {
			share = tenant_record(x->root, e->tenant) + (1 << TUNNY_TENANT_CHUNK_SHIFT);
			mine = &state->punts_held;
		} else {
			share = 1 + other_share(x->ctx);
			mine = &x->root->punt_others[(share - 1) & (TUNNY_PUNT_OTHERS - 1)];
		}
		if (!enter_ring(x->root, &x->root->punt_rings[at], mine, scarce))
			return drop(x, e, scarce ? DROP_PUNT_LIMITED : DROP_PUNT_RING_FULL);
	} else if (scarce) {
		return drop(x, e, DROP_PUNT_LIMITED);
	}
	if (reason == PUNT_PATH_SOFTWARE && state && !tunny_probes.only)
		__sync_fetch_and_add(&state->software, 1);
	if (unlikely(x->root->options & TUNNY_OPT_CAPTURE_PUNTS))
		tunny_capture(x->ctx, TUNNY_EVENT_PUNT, reason, e->vni);
	if (e->admission == ACCEPTED)
		tenant = tenant_record(x->root, e->tenant);
	if (write_meta(x->ctx, e, tenant, share, reason, now))
		count_accepted(x, e);
	else if (mine)
		/* Nobody could say that it was taken: then only the ring's own count limits. */
		__sync_fetch_and_sub(mine, 1);
	x->stats->punted++;
	x->stats->punts[reason & (PUNT_REASONS - 1)]++;
	return XDP_REDIRECT;
}

/* Every end but forwarding. A global function: verified once, not for each caller. */
__noinline int tunny_finish(struct xdp_md *ctx, const struct end *e, int verdict)
{
	struct exit x = exit_of(ctx);

	if (!e || !x.root || !x.stats)
		return XDP_PASS;
	/* Whoever sees it sees it as it came. */
	if (unlikely(e->tag_bytes) && (verdict >= PUNT || x.root->options & TUNNY_OPT_CAPTURE_DROPS) && qinq_restore(ctx, e))
		return drop(&x, e, DROP_TX_FAILED);
	if (verdict == PASS) {
		x.stats->passed++;
		return XDP_PASS;
	}
	return verdict >= PUNT ? punt(&x, e, verdict - PUNT) : drop(&x, e, verdict);
}

/* How the frame leaves by a port; 0: not at all. */
static __always_inline int transmit(struct xdp_md *ctx, __u32 ifindex)
{
	int action;

	if (ifindex == ctx->ingress_ifindex && !READ_ONCE(tunny_redirect_back))
		return XDP_TX;
	action = redirect(&tunny_ports, ifindex);
	return action == XDP_REDIRECT ? action : 0;
}

static __always_inline void count_forwarded(struct tunny_stats *stats, __u32 bytes)
{
	stats->forwarded++;
	stats->forwarded_bytes += bytes;
}

/* Sends the packet on. Negative: how; else it was not sent. */
static __always_inline int emit(struct packet *p)
{
	int action = transmit(p->ctx, p->nexthop->ifindex);

	if (!action)
		return DROP_TX_FAILED;
	count_ingress(p);
	count_vm(p);
	count_forwarded(p->stats, p->bytes);
	return -action;
}

/* Sends a frame on by a port; its VPC is the one that was entered. Negative: how; else it was not sent. */
static __always_inline int emit_frame(struct xdp_md *ctx, const struct end *e, __u32 ifindex, __u32 bytes)
{
	struct exit x = exit_of(ctx);
	int action;

	if (!x.root || !x.stats)
		return DROP_TABLE_FAULT;
	action = transmit(ctx, ifindex);
	if (!action)
		return DROP_TX_FAILED;
	count_accepted(&x, e);
	count_forwarded(x.stats, bytes);
	return -action;
}

#endif

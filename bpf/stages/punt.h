/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* How packets reach the software path, and how many. docs/design/punt-ring.md */
#ifndef TUNNY_PUNT_H
#define TUNNY_PUNT_H

#include "count.h"

/*
 * What is served in software, also because it is shaped, has a meter of its own, so that it takes no part of what others begin connections
 * with. Above it a VPC may still have next to nothing in the ring (enter_ring), so that one that floods does not stop the others.
 */
static __always_inline int software_scarce(struct tunny_root *root, __u64 now, __u32 packets)
{
	return !rate_limit(root->software_limit, &root->software_tat, now, packets);
}

/* N + 1 meters: one of all punts together, one of each tenant. A packet whose tenant is not known counts as yellow. */
static __always_inline int punt_allowed(struct tunny_root *root, struct tunny_tenant_state *state, __u64 now, __u32 packets)
{
	int total = packet_color(root->punt_limit_total, root->punt_peak_total, &root->punt_total_tat,
				 &root->punt_total_peak_tat, now, packets);

	if (!state)
		return punt_passes(total, YELLOW);
	if (!punt_passes(total, packet_color(root->punt_limit_tenant, root->punt_peak_tenant, &state->punt_tat,
					     &state->punt_peak_tat, now, packets))) {
		__sync_fetch_and_add(&state->punts_limited, packets);
		return 0;
	}
	__sync_fetch_and_add(&state->punts, packets);
	return 1;
}

/* What was handed over is counted, and shown to who asked for it. */
static __always_inline void count_punted(struct exit *x, const struct end *e, struct tunny_tenant_state *state, __u32 reason,
					 __u64 packets)
{
	if (reason == PUNT_PATH_SOFTWARE && state && !tunny_probes.only)
		__sync_fetch_and_add(&state->software, packets);
	if (unlikely(x->root->options & TUNNY_OPT_CAPTURE_PUNTS))
		tunny_capture(x->ctx, TUNNY_EVENT_PUNT, reason, e->vni);
	x->stats->punted += packets;
	x->stats->punts[reason & (PUNT_REASONS - 1)] += packets;
}

#ifdef TUNNY_SKB
/* Packets that a frame may stand for. The largest IP packet is 120 segments of the smallest MTU that IPv4 hosts have. */
#define PUNT_PACKETS_MAX 128

/*
 * There is one way to the software path for all ports, which shares nothing out: what is scarce ends here. The packet is counted for its VPC
 * over there. GO or the drop.
 */
static __always_inline int hand_over(struct exit *x, const struct end *e, struct tunny_tenant_state *state, __u32 slot, __u32 reason,
				     int scarce, __u64 now)
{
	__u64 packets = packets_in(&e->segments), rest = OF_CTX(x->ctx, gso_segs);

	/* One frame is not to fill the queue. */
	if (scarce || (packets > rest ? packets : rest) > PUNT_PACKETS_MAX)
		return DROP_PUNT_LIMITED;
	if (redirect_to_software(x->ctx, &tunny_ports, slot | reason << TUNNY_PUNT_TAG_REASON_SHIFT) != XDP_REDIRECT)
		return DROP_PUNT_NO_LISTENER;
	/* Over there it comes as the packets that it stands for, measured or not. */
	if (unlikely(packets == 1 && rest > 1)) {
		x->stats->rx += rest - 1;
		packets = rest;
	}
	count_punted(x, e, state, reason, packets);
	return GO;
}
#else
/* Of packets of no tenant, those for one destination share. */
static __always_inline __u32 other_share(struct frame_ctx *ctx)
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
static __always_inline int write_meta(struct frame_ctx *ctx, const struct end *e, __u32 tenant, __u32 share, __u32 reason, __u64 now)
{
	struct tunny_punt_meta *meta = make_meta(ctx, sizeof(*meta));

	if (!meta)
		return 0;
	meta->magic = TUNNY_PUNT_MAGIC;
	meta->reason = reason;
	meta->flags = 0;
	meta->inner_offset = e->inner_at;
	meta->vni = e->vni;
	meta->ifindex = port_of(ctx);
	meta->time = now;
	meta->tenant = tenant;
	meta->share = share;
	return 1;
}

/* Into the socket of the queue that it came by, behind metadata. GO or the drop. */
static __always_inline int hand_over(struct exit *x, const struct end *e, struct tunny_tenant_state *state, __u32 slot, __u32 reason,
				     int scarce, __u64 now)
{
	__u32 queue = queue_of(x->ctx), at = slot * TUNNY_QUEUES_MAX + queue, share = 0, tenant = 0;
	__u64 *mine = NULL;

	if (queue >= TUNNY_QUEUES_MAX || redirect(&tunny_xsks, at) != XDP_REDIRECT)
		return DROP_PUNT_NO_LISTENER;
	if (!tunny_probes.only && at < TUNNY_PORTS_MAX * TUNNY_QUEUES_MAX && READ_ONCE(x->root->punt_rings[at]) >> 32) {
		if (state) {
			share = tenant_record(x->root, e->tenant) + (1 << TUNNY_TENANT_CHUNK_SHIFT);
			mine = &state->punts_held;
		} else {
			share = 1 + other_share(x->ctx);
			mine = &x->root->punt_others[(share - 1) & (TUNNY_PUNT_OTHERS - 1)];
		}
		if (!enter_ring(x->root, &x->root->punt_rings[at], mine, scarce))
			return scarce ? DROP_PUNT_LIMITED : DROP_PUNT_RING_FULL;
	} else if (scarce) {
		return DROP_PUNT_LIMITED;
	}
	count_punted(x, e, state, reason, 1);
	if (e->admission == ACCEPTED)
		tenant = tenant_record(x->root, e->tenant);
	if (write_meta(x->ctx, e, tenant, share, reason, now))
		count_accepted(x, e);
	else if (mine)
		/* Nobody could say that it was taken: then only the ring's own count limits. */
		__sync_fetch_and_sub(mine, 1);
	return GO;
}
#endif

/* Sends the packet to the software path, if its limits let it. */
static __always_inline int punt(struct exit *x, const struct end *e, __u32 reason)
{
	__u32 *slot = map_value(&tunny_port_slots, port_of(x->ctx));
	struct tunny_tenant_state *state = tenant_state(x, e);
	__u64 now = time_ns();
	__u32 packets = packets_in(&e->segments);
	int path = reason == PUNT_PATH_SOFTWARE || reason == PUNT_SHAPED, scarce = 0, end = DROP_PUNT_NO_LISTENER;

	if (!tunny_probes.only)
		scarce = path ? software_scarce(x->root, now, packets) : !punt_allowed(x->root, state, now, packets);
	if (scarce && !path)
		end = DROP_PUNT_LIMITED;
	else if (slot)
		end = hand_over(x, e, state, *slot, reason, scarce, now);
	return end ? drop(x, e, end) : XDP_REDIRECT;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rates by virtual time (GCRA): one 8-byte word a rate, changed by compare-and-swap, so that all CPUs and the software
 * path share one budget. Four lost races count as conforming: an overloaded meter errs towards passing.
 */
#ifndef TUNNY_METER_H
#define TUNNY_METER_H

#include "memory.h"

/*
 * Takes `cost` ns out of the budget at `tat` if `first` of it fits into `burst` ns. 1 = conforms. A frame of many packets conforms if the first
 * does, and costs as much as all: so it may be larger than any burst, and the rate is kept.
 */
static __always_inline int gcra(__u64 *tat, __u64 now, __u64 first, __u64 cost, __u64 burst)
{
	for (int i = 0; i < 4; i++) {
		__u64 old = READ_ONCE(*tat);
		__u64 base = old > now ? old : now;

		if (base + first - now > burst)
			return 0;
		if (__sync_val_compare_and_swap(tat, old, base + cost) == old)
			return 1;
	}
	return 1;
}

/* A RATE_LIMIT word: ns per packet below, burst in packets above; 0 ns = no limit. */
static __always_inline int rate_limit(__u64 limit, __u64 *tat, __u64 now, __u32 packets)
{
	__u64 cost = limit & 0xffffffff;

	if (!cost)
		return 1;
	return gcra(tat, now, cost, packets * cost, (limit >> TUNNY_RATE_LIMIT_BURST_SHIFT) * cost);
}

enum color { GREEN, YELLOW, RED };

/* One two-rate three-color meter (RFC 2698, color-blind); a rate of 0 always conforms. */
static __always_inline int trtcm(__u64 first, __u64 units, __u64 cir, __u64 cbs, __u64 pir, __u64 pbs, __u64 *c_tat, __u64 *p_tat,
				 __u64 now)
{
	if (pir && !gcra(p_tat, now, first * pir >> 16, units * pir >> 16, pbs))
		return RED;
	if (cir && !gcra(c_tat, now, first * cir >> 16, units * cir >> 16, cbs))
		return YELLOW;
	return GREEN;
}

/* So many packets by two RATE_LIMIT words (RFC 2698, color-blind). */
static __always_inline int packet_color(__u64 committed, __u64 peak, __u64 *c_tat, __u64 *p_tat, __u64 now, __u32 packets)
{
	if (!rate_limit(peak, p_tat, now, packets))
		return RED;
	return rate_limit(committed, c_tat, now, packets) ? GREEN : YELLOW;
}

/*
 * A tenant is limited only while the total is congested: above the total's committed rate red tenants are, above its peak
 * rate all but green ones.
 */
static __always_inline int punt_passes(int total, int tenant)
{
	return total + tenant <= RED || total == GREEN;
}

/* What a meter is asked for: packets, and their bytes together. */
static __always_inline __u64 amount(__u32 bytes, __u32 packets)
{
	return bytes | (__u64)packets << 32;
}

/* Runs the meter block at `line` for an amount. Returns a color; a block that is not there is green. */
__noinline int tunny_meter(__u32 line, __u64 amount, __u64 now)
{
	struct tunny_meter_config *c = line_at(line);
	struct tunny_meter_state *s = line_at(line + 1);
	__u32 bytes = amount, count = all_of(amount >> 32);
	int color, packets;

	if (!c || !s || tunny_probes.only)
		return GREEN;
	color = trtcm(one_of(bytes, count), bytes, c->byte_cir, c->byte_cbs, c->byte_pir, c->byte_pbs, &s->byte_c_tat, &s->byte_p_tat, now);
	if (color != RED) {
		packets = trtcm(1, count, c->packet_cir, c->packet_cbs, c->packet_pir, c->packet_pbs, &s->packet_c_tat,
				&s->packet_p_tat, now);
		if (packets > color)
			color = packets;
	}
	if (color == GREEN)
		__sync_fetch_and_add(&s->green, 1);
	else if (color == YELLOW)
		__sync_fetch_and_add(&s->yellow, 1);
	else
		__sync_fetch_and_add(&s->red, 1);
	return color;
}

#endif

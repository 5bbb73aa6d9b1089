/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Framing plain: an IP packet right behind Ethernet, from the Internet or to it. docs/design/packet-nat-in.md */
#ifndef TUNNY_PLAIN_H
#define TUNNY_PLAIN_H

#include "../addresses.h"
#include "../connection/packet.h"
#include "../tables/checksum.h"

/*
 * A plain packet to a public address: fills the flow. Returns GO or a verdict, PASS if the address is none of ours; *scope says what the
 * address takes.
 */
static __always_inline int plain_decapsulate(struct frame_ctx *ctx, struct tunny_root *root, struct flow *w, __u32 *scope)
{
	__u64 roots = READ_ONCE(root->public_roots);
	int type, why, bad;
	void *ip = front(ctx) + ETH_BYTES;

	if (ip > behind(ctx))
		return PASS;
	type = *(__u16 *)(ip - 2);
	w->at = ETH_BYTES;
	w->frame = frame_bytes(ctx);
	if (type == NET16(ETH_P_IP)) {
		if (ip + IPV4_BYTES > behind(ctx))
			return PASS;
		w->v6 = 0;
		*scope = route32(roots, load_be32(ip + 16)) >> TUNNY_VALUE_SCOPE_SHIFT;
		if (!*scope)
			return PASS;
		ip = front(ctx) + ETH_BYTES;
		if (ip + IPV4_BYTES > behind(ctx))
			return PASS;
		if ((*(__u8 *)ip & 0xf) > 5)
			return PUNT + PUNT_OUTER_OPTIONS;
		if (!ipv4_checks(ip))
			return DROP_OUTER_IP_CHECKSUM;
		w->tos = *(__u8 *)(ip + 1);
	} else if (type == NET16(ETH_P_IPV6)) {
		if (ip + IPV6_BYTES > behind(ctx))
			return PASS;
		w->v6 = 1;
		*scope = route128(roots >> 32, load_be64(ip + 24), load_be64(ip + 32)) >> TUNNY_VALUE_SCOPE_SHIFT;
		if (!*scope)
			return PASS;
		ip = front(ctx) + ETH_BYTES;
		if (ip + IPV6_BYTES > behind(ctx))
			return PASS;
		w->tos = load_be16(ip) >> 4 & 0xff;
	} else {
		return PASS;
	}
	why = read_packet(ctx, w);
	if (w->v6)
		bad = unforwardable6(root->options, w->src_hi, w->src_lo, w->dst_hi, w->dst_lo);
	else
		bad = unforwardable4(root->options, w->src_lo, w->dst_lo);
	if (bad)
		return bad;
	if (w->v6)
		bad = route128(roots >> 32, w->src_hi, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT;
	else
		bad = route32(roots, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT;
	if (bad)
		return DROP_INNER_MARTIAN;
	return why ? PUNT + why : GO;
}

/* Lays the IP packet bare and sends it to a next hop: what is behind it and in front of it goes. -1 if the driver refuses. */
static __always_inline int plain_encapsulate(struct frame_ctx *ctx, struct flow *w, const struct tunny_nexthop *hop)
{
	__u32 end = w->at + w->bytes;
	void *data;

	if (w->frame > end && move_tail(ctx, (int)(end - w->frame)))
		return -1;
	if (w->at != ETH_BYTES && lay_bare(ctx, w->at - ETH_BYTES, w->v6))
		return -1;
	data = front(ctx);
	if (data + ETH_BYTES > behind(ctx))
		return -1;
	store_macs(data, hop->dmac, hop->smac_mtu);
	*(__u16 *)(data + 12) = w->v6 ? NET16(ETH_P_IPV6) : NET16(ETH_P_IP);
	return 0;
}

#endif

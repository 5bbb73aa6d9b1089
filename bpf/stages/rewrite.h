/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* rewrite: MACs, TTL, TOS and checksum of the inner frame. From here on the packet is changed: nothing may punt it. */
#ifndef TUNNY_REWRITE_H
#define TUNNY_REWRITE_H

#include "../packet.h"

static __always_inline __u32 new_inner_tos(const struct packet *p)
{
	__u32 dscp = p->options & TUNNY_OPT_DSCP_UNIFORM ? p->outer_tos & 0xfc : p->inner_tos & 0xfc;

	return dscp | p->ecn;
}

static __always_inline void lower_ttl4(void *ip, __u32 new_tos)
{
	__u32 old_tos = load_be16(ip), tos = (old_tos & 0xff00) | new_tos;
	__u32 old_ttl = load_be16(ip + 8), ttl = old_ttl - 0x100;
	__u32 sum = (~load_be16(ip + 10) & 0xffff) + (~old_ttl & 0xffff) + ttl;

	if (tos != old_tos) {
		sum += (~old_tos & 0xffff) + tos;
		store_be16(ip, tos);
	}
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	store_be16(ip + 8, ttl);
	store_be16(ip + 10, ~sum);
}

/* TTL, TOS and checksum of an IP packet that goes on. */
static __always_inline void lower_ttl(struct frame_ctx *ctx, void *ip, int v6, __u32 tos)
{
	__u64 old;

	if (!v6)
		return lower_ttl4(ip, tos);
	old = (__u64)~*(__u32 *)ip + ~*(__u32 *)(ip + 4);
	store_be32(ip, (load_be32(ip) & 0xf00fffff) | tos << 20);
	*(__u8 *)(ip + 7) -= 1;
	tell_sum(ctx, old + *(__u32 *)ip + *(__u32 *)(ip + 4));
}

static __always_inline int rewrite(struct packet *p)
{
	void *inner = data_of(p->ctx) + p->inner_at;

	if (inner + ETH_BYTES + (p->inner_v6 ? IPV6_BYTES : IPV4_BYTES) > end_of(p->ctx))
		return DROP_TX_FAILED;
	store_macs(inner, p->vm.mac, p->gateway_mac);
	lower_ttl(p->ctx, inner + ETH_BYTES, p->inner_v6, new_inner_tos(p));
	return GO;
}

#endif

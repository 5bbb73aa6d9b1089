/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * rewrite: new outer headers, VNI, inner MACs, TTL, checksums. From here on the packet is changed: nothing may punt it.
 * The outer family is the NC's and may differ from the received one, then the head moves by 20 bytes.
 */
#ifndef TUNNY_REWRITE_H
#define TUNNY_REWRITE_H

#include "../packet.h"
#include "../tables/checksum.h"

static __always_inline void store_be16(void *at, __u32 value)
{
	*(__u16 *)at = __builtin_bswap16(value);
}

static __always_inline void store_be32(void *at, __u32 value)
{
	*(__u32 *)at = __builtin_bswap32(value);
}

static __always_inline void store_be64(void *at, __u64 value)
{
	*(__u64 *)at = __builtin_bswap64(value);
}

/* Destination and source MAC in two stores. */
static __always_inline void store_macs(void *eth, __u64 dst, __u64 src)
{
	store_be64(eth, dst << 16 | (src >> 32 & 0xffff));
	store_be32(eth + 8, src);
}

static __always_inline __u32 outer_tos(const struct packet *p)
{
	__u32 dscp = p->options & TUNNY_OPT_DSCP_UNIFORM ? p->outer_tos & 0xfc :
							    (p->options >> TUNNY_OPT_DSCP_SHIFT & 0x3f) << 2;

	return p->options & TUNNY_OPT_ECN_OFF ? dscp : dscp | p->ecn;
}

static __always_inline __u32 new_inner_tos(const struct packet *p)
{
	__u32 dscp = p->options & TUNNY_OPT_DSCP_UNIFORM ? p->outer_tos & 0xfc : p->inner_tos & 0xfc;

	return dscp | p->ecn;
}

static __always_inline void rewrite_inner_ipv4(struct packet *p, void *ip)
{
	__u32 old_tos = load_be16(ip), tos = (old_tos & 0xff00) | new_inner_tos(p);
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

static __always_inline void rewrite_outer_ipv4(struct packet *p, void *ip, __u32 bytes)
{
	__u32 tos = outer_tos(p), src = p->root->vtep4, dst = p->nc_lo;
	__u32 sum = (0x4500 | tos) + bytes + 0x4000 + (64 << 8 | IPPROTO_UDP);

	sum += (src >> 16) + (src & 0xffff) + (dst >> 16) + (dst & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	store_be64(ip, (__u64)(0x45000000 | tos << 16 | bytes) << 32 | 0x4000);
	store_be32(ip + 8, (64 << 8 | IPPROTO_UDP) << 16 | (~sum & 0xffff));
	store_be64(ip + 12, (__u64)src << 32 | dst);
}

static __always_inline void rewrite_outer_ipv6(struct packet *p, void *ip, __u32 payload)
{
	store_be32(ip, 6U << 28 | outer_tos(p) << 20 | tunny_flow_label(p->flow_hash));
	store_be32(ip + 4, payload << 16 | IPPROTO_UDP << 8 | 64);
	store_be64(ip + 8, p->root->vtep6_hi);
	store_be64(ip + 16, p->root->vtep6_lo);
	store_be64(ip + 24, p->nc_hi);
	store_be64(ip + 32, p->nc_lo);
}

/* Cuts what is behind the outer UDP length and moves the head if the outer family changes. -1 if the driver refuses. */
static __always_inline int reshape(struct packet *p)
{
	__u32 end = p->inner_at + p->inner_bytes;
	int family = (p->outer_v6 ? IPV6_BYTES : IPV4_BYTES) - (p->nc_v6 ? IPV6_BYTES : IPV4_BYTES);

	if (unlikely(p->bytes > end) && move_tail(p->ctx, (int)(end - p->bytes)))
		return -1;
	if (unlikely(family) && move_head(p->ctx, family))
		return -1;
	p->inner_at -= family;
	return 0;
}

/* Outer UDP checksum over all buffers; the field holds 0. `pseudo` is the sum of the addresses. */
static __always_inline int fill_udp_checksum(struct packet *p, __u32 at, __u32 bytes, __u64 pseudo)
{
	int sum = tunny_sum(p->ctx, at, bytes, pseudo + __builtin_bswap16(bytes) + __builtin_bswap16(IPPROTO_UDP));
	void *udp = data_of(p->ctx) + at;

	if (sum < 0 || udp + UDP_BYTES > end_of(p->ctx))
		return -1;
	*(__u16 *)(udp + 6) = sum == 0xffff ? 0xffff : ~sum;
	return 0;
}

static __always_inline int rewrite(struct packet *p)
{
	__u64 dmac = p->nexthop->dmac, smac = p->nexthop->smac_mtu, gateway_mac = p->gateway_mac;
	__u32 udp_bytes = UDP_BYTES + VXLAN_BYTES + p->inner_bytes;
	__u64 pseudo = 0;
	void *data, *udp, *inner;
	__u32 at;

	if (reshape(p))
		return DROP_TX_FAILED;
	data = data_of(p->ctx);
	at = p->nc_v6 ? ETH_BYTES + IPV6_BYTES : ETH_BYTES + IPV4_BYTES;
	udp = data + at;
	inner = udp + UDP_BYTES + VXLAN_BYTES;
	if (inner + ETH_BYTES + (p->inner_v6 ? IPV6_BYTES : IPV4_BYTES) > end_of(p->ctx))
		return DROP_TX_FAILED;
	store_macs(data, dmac, smac);
	if (likely(!p->nc_v6)) {
		*(__u16 *)(data + 12) = NET16(ETH_P_IP);
		rewrite_outer_ipv4(p, data + ETH_BYTES, IPV4_BYTES + udp_bytes);
	} else {
		*(__u16 *)(data + 12) = NET16(ETH_P_IPV6);
		rewrite_outer_ipv6(p, data + ETH_BYTES, udp_bytes);
	}
	store_be64(udp, (__u64)tunny_source_port(p->flow_hash) << 48 |
				(p->options >> TUNNY_OPT_PORT_SHIFT & 0xffff) << 32 | udp_bytes << 16);
	store_be64(udp + UDP_BYTES, 0x08ULL << 56 | (__u64)p->to_vni << 8);
	store_macs(inner, p->vm.mac, gateway_mac);
	if (!p->inner_v6) {
		rewrite_inner_ipv4(p, inner + ETH_BYTES);
	} else {
		__u32 word = load_be32(inner + ETH_BYTES);

		store_be32(inner + ETH_BYTES, (word & 0xf00fffff) | new_inner_tos(p) << 20);
		*(__u8 *)(inner + ETH_BYTES + 7) -= 1;
	}
	if (unlikely(p->options & (p->nc_v6 ? TUNNY_OPT_UDP6_CHECKSUM : TUNNY_OPT_UDP4_CHECKSUM))) {
		const __u32 *w = data + ETH_BYTES;

		if (p->nc_v6) {
#pragma unroll
			for (int i = 2; i < 10; i++)
				pseudo += w[i];
		} else {
			pseudo = (__u64)w[3] + w[4];
		}
		if (fill_udp_checksum(p, at, udp_bytes, pseudo))
			return DROP_TX_FAILED;
	}
	return GO;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Translation of addresses and ports, and the tunnel that a packet loses or gets. From here on nothing may punt it. */
#ifndef TUNNY_NAT_REWRITE_H
#define TUNNY_NAT_REWRITE_H

#include "../connection/packet.h"
#include "rewrite.h"

static __always_inline void change_sum(void *at, __u64 difference)
{
	*(__u16 *)at = ~fold((__u64)(__u16)~*(__u16 *)at + difference);
}

/*
 * Gives the IPv4 packet at `ip`, whose upper header is whole, another source (or destination) and port: checksums by
 * difference, a UDP checksum of zero stays, one that becomes zero is sent as all ones.
 */
static __always_inline int translate4(struct xdp_md *ctx, const struct nat_work *w, void *ip, __u32 addr, __u32 port, int in)
{
	void *l4 = ip + IPV4_BYTES, *where = ip + (in ? 16 : 12);
	__u32 new_addr = __builtin_bswap32(addr), old_addr;
	__u16 new_port = __builtin_bswap16(port), old_port;
	__u64 change, ports;

	if (l4 + UDP_BYTES > behind(ctx))
		return -1;
	old_addr = *(__u32 *)where;
	if (w->upper == UPPER_ECHO)
		old_port = *(__u16 *)(l4 + 4);
	else
		old_port = *(__u16 *)(l4 + (in ? 2 : 0));
	if (old_addr == new_addr && old_port == new_port)
		return 0;
	change = (__u64)(__u32)~old_addr + new_addr;
	ports = (__u64)(__u16)~old_port + new_port;
	*(__u32 *)where = new_addr;
	change_sum(ip + 10, change);
	if (w->upper == UPPER_ECHO) {
		*(__u16 *)(l4 + 4) = new_port;
		change_sum(l4 + 2, ports);
		return 0;
	}
	*(__u16 *)(l4 + (in ? 2 : 0)) = new_port;
	if (w->upper == UPPER_TCP) {
		if (l4 + TCP_BYTES > behind(ctx))
			return -1;
		change_sum(l4 + 16, change + ports);
	} else if (*(__u16 *)(l4 + 6)) {
		change_sum(l4 + 6, change + ports);
		if (!*(__u16 *)(l4 + 6))
			*(__u16 *)(l4 + 6) = 0xffff;
	}
	return 0;
}

/* Bytes behind the packet and the tunnel in front of it go. -1 if the driver refuses. */
static __always_inline int unwrap(struct xdp_md *ctx, const struct nat_work *w)
{
	__u32 end = w->at + w->bytes;

	if (w->frame > end && move_tail(ctx, (int)(end - w->frame)))
		return -1;
	return move_head(ctx, (int)w->at - ETH_BYTES);
}

/* Ethernet, TTL and TOS of the packet that begins the frame now. */
static __always_inline int rewrite_plain(struct xdp_md *ctx, const struct nat_work *w, struct tunny_nexthop *hop,
					 __u32 addr, __u32 port)
{
	void *data = front(ctx), *ip = data + ETH_BYTES;

	if (ip + IPV4_BYTES + UDP_BYTES > behind(ctx))
		return -1;
	store_macs(data, hop->dmac, hop->smac_mtu);
	if (w->v6) {
		if (ip + IPV6_BYTES > behind(ctx))
			return -1;
		*(__u16 *)(data + 12) = NET16(ETH_P_IPV6);
		store_be32(ip, (load_be32(ip) & 0xf00fffff) | w->tos << 20);
		*(__u8 *)(ip + 7) -= 1;
		return 0;
	}
	*(__u16 *)(data + 12) = NET16(ETH_P_IP);
	if (translate4(ctx, w, ip, addr, port, 0))
		return -1;
	{
		__u32 old_tos = load_be16(ip), tos = (old_tos & 0xff00) | w->tos;
		__u32 old_ttl = load_be16(ip + 8), ttl = old_ttl - 0x100;
		__u32 sum = (~load_be16(ip + 10) & 0xffff) + (~old_ttl & 0xffff) + ttl + (~old_tos & 0xffff) + tos;

		store_be16(ip, tos);
		store_be16(ip + 8, ttl);
		store_be16(ip + 10, ~fold(sum));
	}
	return 0;
}

/* Makes room for a tunnel and translates; from here on nothing may punt the packet. */
static __always_inline int wrap(struct packet *p, struct nat_work *w, __u32 port)
{
	void *ip;

	if (move_head(p->ctx, -(int)(ETH_BYTES + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES)))
		return -1;
	p->inner_at = ETH_BYTES + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES;
	p->bytes += p->inner_at;
	if (w->v6)
		return 0;
	ip = front(p->ctx) + ETH_BYTES + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES + ETH_BYTES;
	if (ip + IPV4_BYTES > behind(p->ctx))
		return -1;
	return translate4(p->ctx, w, ip, w->walk.dst_lo, port, 1);
}

#endif

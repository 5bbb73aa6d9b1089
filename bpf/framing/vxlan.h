/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Framing vxlan (RFC 7348): Ethernet, IP, UDP and VXLAN around a frame. The order of checks is docs/design/packet-parse.md; how the headers
 * are written, docs/design/packet-rewrite.md. The outer family is the NC's and may differ from the one received.
 */
#ifndef TUNNY_VXLAN_H
#define TUNNY_VXLAN_H

#include "../packet.h"
#include "../tables/checksum.h"

/* Is a frame that has only its first fragment addressed to the VXLAN port? `udp` is its offset, `bytes` the payload. */
static __always_inline int first_fragment(struct packet *p, __u32 udp, __u32 bytes)
{
	__u8 header[UDP_BYTES];

	if (bytes < UDP_BYTES || copy_out(p->ctx, udp, header, sizeof(header)) < 0)
		return PASS;
	return load_be16(header + 2) == (p->options >> TUNNY_OPT_PORT_SHIFT & 0xffff) ? DROP_OUTER_FRAGMENT : PASS;
}

/* Verifies a UDP checksum that is present. `pseudo`: sum of the addresses, in network byte order. */
static __always_inline int check_udp(struct packet *p, __u32 at, __u32 bytes, __u64 pseudo)
{
	/* The pseudo header counts the length again, and the protocol. */
	pseudo += __builtin_bswap16(bytes) + __builtin_bswap16(IPPROTO_UDP);
	return tunny_sum(p->ctx, at, bytes, pseudo) == 0xffff;
}

/* UDP and VXLAN: `at` is the offset of the UDP header, `payload` the bytes behind the IP header. */
static __always_inline int vxlan_header(struct packet *p, struct end *e, __u32 at, __u32 payload, __u64 pseudo)
{
	void *udp = data_of(p->ctx) + at;
	__u32 bytes, checksum;

	if (payload < UDP_BYTES)
		return DROP_OUTER_TRUNCATED;
	if (udp + UDP_BYTES > end_of(p->ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	if (load_be16(udp + 2) != (p->options >> TUNNY_OPT_PORT_SHIFT & 0xffff))
		return PASS;
	bytes = load_be16(udp + 4);
	checksum = *(__u16 *)(udp + 6);
	if (bytes < UDP_BYTES || bytes > payload)
		return DROP_OUTER_UDP_MALFORMED;
	if (bytes < UDP_BYTES + VXLAN_BYTES)
		return DROP_VXLAN_TRUNCATED;
	if (checksum ? !checksum_pending(p->ctx) && !check_udp(p, at, bytes, pseudo) : p->sender_v6 && p->options & TUNNY_OPT_UDP6_ZERO_REFUSED)
		return DROP_OUTER_UDP_CHECKSUM;
	udp = data_of(p->ctx) + at;
	if (udp + UDP_BYTES + VXLAN_BYTES > end_of(p->ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	if (!(*(__u8 *)(udp + UDP_BYTES) & 0x08))
		return DROP_VXLAN_NO_VNI_FLAG;
	p->vni = load_be32(udp + UDP_BYTES + 4) >> 8;
	p->inner_at = at + UDP_BYTES + VXLAN_BYTES;
	p->inner_bytes = bytes - UDP_BYTES - VXLAN_BYTES;
	e->vni = p->vni;
	e->inner_at = p->inner_at;
	e->inner_bytes = p->inner_bytes;
	count_segments(p->ctx, p->stats, e, p->inner_at);
	return GO;
}

static __always_inline int vxlan_over_ipv4(struct packet *p, struct end *e)
{
	struct iphdr *ip = data_of(p->ctx) + ETH_BYTES;
	__u32 total, header, fragment;

	if ((void *)(ip + 1) > end_of(p->ctx))
		return short_of(p, ETH_BYTES + IPV4_BYTES, DROP_OUTER_TRUNCATED);
	total = __builtin_bswap16(ip->tot_len);
	header = *(__u8 *)ip;
	if (unlikely(header != 0x45)) {
		if (header >> 4 != 4 || header < 0x45)
			return DROP_OUTER_IP_MALFORMED;
	}
	header = (header & 0xf) * 4;
	if (total < header || !frame_holds(p, ETH_BYTES + total))
		return DROP_OUTER_IP_MALFORMED;
	if (ip->daddr != (__u32)__builtin_bswap32(p->root->vtep4) || !p->root->vtep4)
		return PASS;
	if (ip->protocol != IPPROTO_UDP)
		return PASS;
	if (unlikely(header > IPV4_BYTES))
		return PUNT + PUNT_OUTER_OPTIONS;
	if (!ipv4_checks(ip))
		return DROP_OUTER_IP_CHECKSUM;
	fragment = __builtin_bswap16(ip->frag_off);
	if (unlikely(fragment & (IP_OFFSET | IP_MF))) {
		if (fragment & IP_OFFSET)
			return PASS;
		return first_fragment(p, ETH_BYTES + header, total - header);
	}
	p->sender_lo = __builtin_bswap32(ip->saddr);
	e->sender_lo = p->sender_lo;
	e->sender_v6 = 0;
	p->outer_tos = ip->tos;
	return vxlan_header(p, e, ETH_BYTES + IPV4_BYTES, total - IPV4_BYTES, (__u64)ip->saddr + ip->daddr);
}

static __always_inline int vxlan_over_ipv6(struct packet *p, struct end *e)
{
	struct ipv6hdr *ip = data_of(p->ctx) + ETH_BYTES;
	const __u32 *w = (const __u32 *)ip;
	__u64 pseudo = 0;
	__u32 payload;

	if ((void *)(ip + 1) > end_of(p->ctx))
		return short_of(p, ETH_BYTES + IPV6_BYTES, DROP_OUTER_TRUNCATED);
	payload = __builtin_bswap16(ip->payload_len);
	if (*(__u8 *)ip >> 4 != 6 || !frame_holds(p, ETH_BYTES + IPV6_BYTES + payload))
		return DROP_OUTER_IP_MALFORMED;
	if (load_be64(&w[6]) != p->root->vtep6_hi || load_be64(&w[8]) != p->root->vtep6_lo ||
	    !(p->root->vtep6_hi | p->root->vtep6_lo))
		return PASS;
	if (unlikely(ip->nexthdr != IPPROTO_UDP)) {
		if (ip->nexthdr == PROTO_HOPOPTS || ip->nexthdr == PROTO_ROUTING || ip->nexthdr == PROTO_DSTOPTS ||
		    ip->nexthdr == PROTO_FRAGMENT)
			return PUNT + PUNT_OUTER_OPTIONS;
		return PASS;
	}
	e->sender_v6 = 1;
	e->sender_hi = load_be64(&w[2]);
	e->sender_lo = load_be64(&w[4]);
	p->outer_tos = load_be16(ip) >> 4 & 0xff;
#pragma unroll
	for (int i = 2; i < 10; i++)
		pseudo += w[i];
	return vxlan_header(p, e, ETH_BYTES + IPV6_BYTES, payload, pseudo);
}

/* Takes the tunnel off: fills sender, VNI and where the inner frame is. p->sender_v6 says of which family the outer header is. */
static __always_inline int vxlan_decapsulate(struct packet *p, struct end *e)
{
	return p->sender_v6 ? vxlan_over_ipv6(p, e) : vxlan_over_ipv4(p, e);
}

/* Bytes around the inner frame that an MTU counts. */
static __always_inline __u32 vxlan_overhead(int v6)
{
	return (v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES + VXLAN_BYTES;
}

static __always_inline __u32 outer_tos(const struct packet *p)
{
	__u32 dscp = p->options & TUNNY_OPT_DSCP_UNIFORM ? p->outer_tos & 0xfc :
							    (p->options >> TUNNY_OPT_DSCP_SHIFT & 0x3f) << 2;

	return p->options & TUNNY_OPT_ECN_OFF ? dscp : dscp | p->ecn;
}

static __always_inline void write_ipv4(struct packet *p, void *ip, __u32 bytes)
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

static __always_inline void write_ipv6(struct packet *p, void *ip, __u32 payload)
{
	store_be32(ip, 6U << 28 | outer_tos(p) << 20 | tunny_flow_label(p->flow_hash));
	store_be32(ip + 4, payload << 16 | IPPROTO_UDP << 8 | 64);
	store_be64(ip + 8, p->root->vtep6_hi);
	store_be64(ip + 16, p->root->vtep6_lo);
	store_be64(ip + 24, p->nc_hi);
	store_be64(ip + 32, p->nc_lo);
}

/* The frame gets room for the tunnel's headers, or has too much, and loses what is behind it. -1 if the driver refuses. */
static __always_inline int vxlan_reshape(struct packet *p, __u32 headers)
{
	__u32 end = p->inner_at + p->end->inner_bytes;

	if (unlikely(p->bytes > end) && move_tail(p->ctx, (int)(end - p->bytes)))
		return -1;
	if (make_room(p->ctx, p->inner_at, headers, p->nc_v6, p->inner_v6))
		return -1;
	p->inner_at = headers;
	p->bytes = headers + p->end->inner_bytes;
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

static __always_inline __u64 wants_checksum(const struct packet *p)
{
	return p->options & (p->nc_v6 ? TUNNY_OPT_UDP6_CHECKSUM : TUNNY_OPT_UDP4_CHECKSUM);
}

/*
 * A frame of many packets has marks for one tunnel, and none for a checksum of each packet around it; a checksum around a packet needs the
 * packet's own.
 */
static __always_inline int vxlan_needs_whole(const struct packet *p)
{
	if (tunnel_of_many(p->ctx) && (!p->inner_at || p->nc_v6 != p->sender_v6))
		return 1;
	/* With its tunnel it would be longer than an IP packet can be. */
	if (sizeof(p->end->segments) && p->end->inner_bytes + vxlan_overhead(p->nc_v6) > 0xffff)
		return 1;
	return wants_checksum(p) && (checksum_pending(p->ctx) || stands_for_many(p->ctx));
}

/* Puts the frame into a tunnel to its NC. GO, or a drop: it may be changed by then. */
static __always_inline int vxlan_encapsulate(struct packet *p)
{
	__u64 dmac = p->nexthop->dmac, smac = p->nexthop->smac_mtu;
	__u32 udp_bytes = UDP_BYTES + VXLAN_BYTES + p->end->inner_bytes;
	__u32 at = p->nc_v6 ? ETH_BYTES + IPV6_BYTES : ETH_BYTES + IPV4_BYTES;
	__u64 pseudo = 0;
	void *data, *udp;

	if (vxlan_reshape(p, at + UDP_BYTES + VXLAN_BYTES))
		return DROP_TX_FAILED;
	data = data_of(p->ctx);
	udp = data + at;
	/* With the inner headers: 6.1 forgets which family it is, and these are the bytes of either. */
	if (udp + UDP_BYTES + VXLAN_BYTES + ETH_BYTES + IPV4_BYTES > end_of(p->ctx))
		return DROP_TX_FAILED;
	store_macs(data, dmac, smac);
	if (likely(!p->nc_v6)) {
		*(__u16 *)(data + 12) = NET16(ETH_P_IP);
		write_ipv4(p, data + ETH_BYTES, IPV4_BYTES + udp_bytes);
	} else {
		*(__u16 *)(data + 12) = NET16(ETH_P_IPV6);
		write_ipv6(p, data + ETH_BYTES, udp_bytes);
	}
	store_be64(udp, (__u64)tunny_source_port(p->flow_hash) << 48 |
				(p->options >> TUNNY_OPT_PORT_SHIFT & 0xffff) << 32 | udp_bytes << 16);
	store_be64(udp + UDP_BYTES, 0x08ULL << 56 | (__u64)p->to_vni << 8);
	if (likely(!wants_checksum(p)))
		return GO;
	const __u32 *w = data + ETH_BYTES;

	if (p->nc_v6) {
#pragma unroll
		for (int i = 2; i < 10; i++)
			pseudo += w[i];
	} else {
		pseudo = (__u64)w[3] + w[4];
	}
	return fill_udp_checksum(p, at, udp_bytes, pseudo) ? DROP_TX_FAILED : GO;
}

#endif

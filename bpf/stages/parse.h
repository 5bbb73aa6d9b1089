/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * parse: outer Ethernet, IP, UDP, VXLAN, then the inner headers. The order of checks is docs/design/packet-parse.md.
 * What is wrong with the inner frame is remembered and reported by the tenant stage.
 */
#ifndef TUNNY_PARSE_H
#define TUNNY_PARSE_H

#include "prefetch.h"
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

/* Outer UDP and VXLAN: `at` is the offset of the UDP header, `payload` the bytes behind the IP header. */
static __always_inline int parse_vxlan(struct packet *p, struct end *e, __u32 at, __u32 payload, __u64 pseudo)
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
	if (checksum ? !check_udp(p, at, bytes, pseudo) : p->outer_v6 && p->options & TUNNY_OPT_UDP6_ZERO_REFUSED)
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
	return GO;
}

static __always_inline int parse_outer_ipv4(struct packet *p, struct end *e)
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
	p->outer_src_lo = __builtin_bswap32(ip->saddr);
	e->outer_src_lo = p->outer_src_lo;
	e->outer_v6 = 0;
	p->outer_tos = ip->tos;
	return parse_vxlan(p, e, ETH_BYTES + IPV4_BYTES, total - IPV4_BYTES, (__u64)ip->saddr + ip->daddr);
}

static __always_inline int parse_outer_ipv6(struct packet *p, struct end *e)
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
	e->outer_v6 = 1;
	e->outer_src_hi = load_be64(&w[2]);
	e->outer_src_lo = load_be64(&w[4]);
	p->outer_tos = load_be16(ip) >> 4 & 0xff;
#pragma unroll
	for (int i = 2; i < 10; i++)
		pseudo += w[i];
	return parse_vxlan(p, e, ETH_BYTES + IPV6_BYTES, payload, pseudo);
}

/* TCP, UDP and SCTP ports of an unfragmented packet as one number; -1 if they are in a further buffer. */
static __always_inline __s64 flow_ports(struct packet *p, __u32 proto, __u32 at, __u32 l4_bytes)
{
	void *l4;

	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP && proto != IPPROTO_SCTP)
		return 0;
	if (l4_bytes < 4)
		return 0;
	l4 = data_of(p->ctx) + at;
	if (l4 + 4 > end_of(p->ctx))
		return -1;
	return load_be32(l4);
}

/* New inner ECN (RFC 6040 section 4.2). Returns GO or the drop. */
static __always_inline int combine_ecn(struct packet *p)
{
	__u32 outer = p->outer_tos & 3, inner = p->inner_tos & 3;

	p->ecn = inner;
	if (p->options & TUNNY_OPT_ECN_OFF)
		return GO;
	if (outer == 3) {
		if (!inner)
			return DROP_ECN_CONGESTION_LOST;
		p->ecn = 3;
	} else if (outer == 1 && inner == 2) {
		p->ecn = 1;
	}
	return GO;
}

/* What the special-purpose addresses of a packet come to: GO or a drop. docs/reference/special-addresses.md */
static __always_inline int unforwardable(__u64 options, int src, int dst)
{
	if (likely(!(src | dst)))
		return GO;
	if (src == DROP_INNER_LINK_LOCAL || dst == DROP_INNER_LINK_LOCAL)
		return DROP_INNER_LINK_LOCAL;
	if (src == DROP_INNER_MARTIAN || dst == DROP_INNER_MARTIAN)
		return DROP_INNER_MARTIAN;
	return options & TUNNY_OPT_DOCUMENTATION_DROPPED ? DROP_INNER_DOCUMENTATION : GO;
}

/* The same for the addresses themselves. A multicast destination is no part of it. */
static __always_inline int unforwardable4(__u64 options, __u32 src, __u32 dst)
{
	int from = src >= 0xe0000000 ? DROP_INNER_MARTIAN : tunny_special4(src, 1);

	return unforwardable(options, from, tunny_special4(dst, 0));
}

/* Why a packet from this address is not forwarded; 0: it is. */
static __always_inline int source6(__u64 hi, __u64 lo)
{
	return hi >> 56 == 0xff ? DROP_INNER_MARTIAN : tunny_special6(hi, lo, 1);
}

static __always_inline int unforwardable6(__u64 options, __u64 src_hi, __u64 src_lo, __u64 dst_hi, __u64 dst_lo)
{
	return unforwardable(options, source6(src_hi, src_lo), tunny_special6(dst_hi, dst_lo, 0));
}

/* Returns GO, a pending inner error, or PUNT + PUNT_NONLINEAR_HEADERS. */
static __always_inline int parse_inner_ipv4(struct packet *p)
{
	void *eth = data_of(p->ctx) + p->inner_at;
	struct iphdr *ip = eth + ETH_BYTES;
	__u32 total, header, src, dst, mac;
	__s64 ports = 0;
	int bad;

	if (p->inner_bytes < ETH_BYTES + IPV4_BYTES)
		return DROP_INNER_TRUNCATED;
	if ((void *)(ip + 1) > end_of(p->ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	header = *(__u8 *)ip;
	if (unlikely(header != 0x45)) {
		if (header >> 4 != 4 || header < 0x45)
			return DROP_INNER_IP_MALFORMED;
	}
	header = (header & 0xf) * 4;
	total = __builtin_bswap16(ip->tot_len);
	if (total < header || ETH_BYTES + total > p->inner_bytes)
		return DROP_INNER_IP_MALFORMED;
	if (unlikely(header > IPV4_BYTES))
		return PUNT + PUNT_INNER_OPTIONS;
	if (!ipv4_checks(ip))
		return DROP_INNER_IP_CHECKSUM;
	src = __builtin_bswap32(ip->saddr);
	dst = __builtin_bswap32(ip->daddr);
	mac = *(__u8 *)eth & 1;
	if (unlikely(mac || dst >= 0xe0000000)) {
		if ((*(__u32 *)eth == 0xffffffff && *(__u16 *)(eth + 4) == 0xffff) || dst == 0xffffffff)
			return DROP_INNER_BROADCAST;
		if (mac || dst >> 28 == 0xe)
			return DROP_INNER_MULTICAST;
	}
	p->dst_lo = dst;
	bad = unforwardable4(p->options, src, dst);
	if (unlikely(bad))
		return bad;
	p->ttl = ip->ttl;
	p->inner_tos = ip->tos;
	if (combine_ecn(p))
		return DROP_ECN_CONGESTION_LOST;
	if (!(ip->frag_off & __builtin_bswap16(IP_OFFSET | IP_MF))) {
		ports = flow_ports(p, ip->protocol, p->inner_at + ETH_BYTES + IPV4_BYTES, total - IPV4_BYTES);
		if (ports < 0)
			return PUNT + PUNT_NONLINEAR_HEADERS;
	}
	p->flow_hash = tunny_flow_hash_v4(src, dst, ip->protocol, ports);
	return GO;
}

/* The same for IPv6. */
static __always_inline int parse_inner_ipv6(struct packet *p)
{
	void *eth = data_of(p->ctx) + p->inner_at;
	struct ipv6hdr *ip = eth + ETH_BYTES;
	__u64 src_hi, src_lo, dst_hi, dst_lo;
	__u32 payload, next, mac;
	__s64 ports;
	int bad;

	if (p->inner_bytes < ETH_BYTES + IPV6_BYTES)
		return DROP_INNER_TRUNCATED;
	if ((void *)(ip + 1) > end_of(p->ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	payload = __builtin_bswap16(ip->payload_len);
	if (*(__u8 *)ip >> 4 != 6 || ETH_BYTES + IPV6_BYTES + payload > p->inner_bytes)
		return DROP_INNER_IP_MALFORMED;
	next = ip->nexthdr;
	if (next == IPPROTO_ICMPV6) {
		__u8 *icmp = (void *)(ip + 1);

		if (payload < 4)
			return DROP_INNER_TRUNCATED;
		if ((void *)(icmp + 4) > end_of(p->ctx))
			return PUNT + PUNT_NONLINEAR_HEADERS;
		if (*icmp >= 133 && *icmp <= 137)
			return PUNT + PUNT_ND;
	}
	src_hi = load_be64((void *)ip + 8);
	src_lo = load_be64((void *)ip + 16);
	dst_hi = load_be64((void *)ip + 24);
	dst_lo = load_be64((void *)ip + 32);
	mac = *(__u8 *)eth & 1;
	if (unlikely(mac || dst_hi >> 56 == 0xff)) {
		if (*(__u32 *)eth == 0xffffffff && *(__u16 *)(eth + 4) == 0xffff)
			return DROP_INNER_BROADCAST;
		return DROP_INNER_MULTICAST;
	}
	p->dst_hi = dst_hi;
	p->dst_lo = dst_lo;
	bad = unforwardable6(p->options, src_hi, src_lo, dst_hi, dst_lo);
	if (unlikely(bad))
		return bad;
	p->ttl = ip->hop_limit;
	p->inner_tos = load_be16(ip) >> 4 & 0xff;
	if (combine_ecn(p))
		return DROP_ECN_CONGESTION_LOST;
	ports = flow_ports(p, next, p->inner_at + ETH_BYTES + IPV6_BYTES, payload);
	if (ports < 0)
		return PUNT + PUNT_NONLINEAR_HEADERS;
	p->flow_hash = tunny_flow_hash_v6(src_hi, src_lo, dst_hi, dst_lo, next, ports);
	return GO;
}

/*
 * The inner Ethernet header: the EtherType (network byte order) of IPv4 or IPv6, else 0 and in *end what to do with it.
 */
static __always_inline __u16 parse_inner_ethernet(struct packet *p, int *end)
{
	void *eth = data_of(p->ctx) + p->inner_at;
	__u16 type;

	*end = DROP_INNER_TRUNCATED;
	if (p->inner_bytes < ETH_BYTES)
		return 0;
	*end = PUNT + PUNT_NONLINEAR_HEADERS;
	if (eth + ETH_BYTES > end_of(p->ctx))
		return 0;
	*end = DROP_INNER_MULTICAST_SOURCE_MAC;
	if (*(__u8 *)(eth + 6) & 1)
		return 0;
	type = *(__u16 *)(eth + 12);
	if (likely(type == NET16(ETH_P_IP)) || type == NET16(ETH_P_IPV6))
		return type;
	if (type == NET16(ETH_P_ARP))
		*end = PUNT + PUNT_ARP;
	else if (type == NET16(ETH_P_8021Q) || type == NET16(ETH_P_8021AD) || type == NET16(0x9100))
		*end = DROP_INNER_VLAN;
	else
		*end = DROP_INNER_ETHERTYPE;
	return 0;
}

/* EtherType of the frame in network byte order; -1 if the frame is too short. */
static __always_inline int outer_type(struct packet *p)
{
	void *data = data_of(p->ctx);

	return data + ETH_BYTES > end_of(p->ctx) ? -1 : *(__u16 *)(data + 12);
}

/* Outer headers; p->outer_v6 says of which family. Then prefetches the lines that they and the destination name. */
static __always_inline int parse_outer(struct packet *p, struct end *e)
{
	int end = p->outer_v6 ? parse_outer_ipv6(p, e) : parse_outer_ipv4(p, e);
	void *inner_dst;

	if (end)
		return end;
	inner_dst = data_of(p->ctx) + p->inner_at + ETH_BYTES + 16;
	return first_lines(p, inner_dst + 4 > end_of(p->ctx) ? 0 : load_be32(inner_dst));
}

static __always_inline int parse_inner(struct packet *p)
{
	return p->inner_v6 ? parse_inner_ipv6(p) : parse_inner_ipv4(p);
}

#endif

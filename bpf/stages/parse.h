/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * parse: the headers of the frame that its framing has laid bare. The order of checks is docs/design/packet-parse.md. What is wrong with
 * it is remembered and reported by the tenant stage.
 */
#ifndef TUNNY_PARSE_H
#define TUNNY_PARSE_H

#include "../addresses.h"
#include "../tables/checksum.h"

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
	/* A tag that stands beside the frame. */
	if (!p->inner_at && tagged(p->ctx))
		type = NET16(ETH_P_8021Q);
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

static __always_inline int parse_inner(struct packet *p)
{
	return p->inner_v6 ? parse_inner_ipv6(p) : parse_inner_ipv4(p);
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Role filter: a frame passes from one end of a wire to the other, unchanged. Behind one end are servers; one lookup of the server's
 * address says whether it is behind this very wire and whose it is. Then the filter, as between VMs.
 */
#ifndef TUNNY_WIRES_H
#define TUNNY_WIRES_H

#include "filter.h"

/* It passes without being judged. Like every verdict that is no drop reason, above them. */
#define FREE (PASS + 1)
#define ARP_BYTES 28
#define ND_BYTES 24
#define MLD_BYTES 16
#define WIRE_ENDS (2 * TUNNY_WIRES_MAX)

/* The end of a wire that a port is, WIRE_ENDS if it is none. */
static __always_inline __u32 wire_place(const struct tunny_root *root, __u32 ifindex)
{
	for (__u32 i = 0; i < WIRE_ENDS; i++) {
		if ((__u32)READ_ONCE(root->wire_ends[i]) == ifindex)
			return i;
	}
	return WIRE_ENDS;
}

static __always_inline __u32 wire_vni(__u32 value)
{
	return value >> TUNNY_VALUE_SCOPE_SHIFT == TUNNY_SCOPE_LOCAL ? value & TUNNY_VALUE_ARG_MASK : 0;
}

/* VNI of the server behind the wire that has an address, 0 if none has it. */
static __always_inline __u32 server4(const struct nat_work *w, __u32 addr)
{
	return wire_vni(route32(w->servers, addr));
}

static __always_inline __u32 server6(const struct nat_work *w, __u64 hi, __u64 lo)
{
	return wire_vni(route128(w->servers >> 32, hi, lo));
}

/* The VPC that the frame is counted for. */
static __always_inline int wire_vpc(const struct tunny_root *root, struct nat_work *w, struct end *e, __u32 vni)
{
	struct tenant t;

	if (!vni || !tenant_find(root, vni, &t))
		return 0;
	w->vni = vni;
	w->policy = t.policy;
	w->tenant_key = t.key;
	e->vni = vni;
	e->tenant = tenant_id(t.key);
	e->admission = ATTRIBUTED;
	return 1;
}

/* ARP passes; a server must not speak for another one. */
static __always_inline int wire_arp(struct xdp_md *ctx, const struct nat_work *w)
{
	void *arp = front(ctx) + ETH_BYTES;
	__u32 sender;

	if (arp + ARP_BYTES > behind(ctx))
		return buffers_bytes(ctx) < ETH_BYTES + ARP_BYTES ? DROP_ARP_MALFORMED : PUNT + PUNT_NONLINEAR_HEADERS;
	if (load_be64(arp) >> 16 != 0x000108000604)
		return DROP_ARP_MALFORMED;
	sender = load_be32(arp + 14);
	return w->servers_side && sender && !server4(w, sender) ? DROP_FILTER_SPOOFED : FREE;
}

/* Are `need` bytes of the frame in its first buffer? Else what that means for the frame. */
static __always_inline int wire_short(struct xdp_md *ctx, __u32 need)
{
	return buffers_bytes(ctx) < need ? DROP_INNER_TRUNCATED : PUNT + PUNT_NONLINEAR_HEADERS;
}

/* The frame's headers. GO: an IP packet, and w->why says why the fast path does not judge it, if it does not. */
static __always_inline int wire_headers(struct xdp_md *ctx, struct nat_work *w)
{
	void *eth = front(ctx), *ip = eth + ETH_BYTES;
	__u32 left;
	__u16 type;

	if (ip > behind(ctx))
		return wire_short(ctx, ETH_BYTES);
	if (*(__u8 *)(eth + 6) & 1)
		return DROP_INNER_MULTICAST_SOURCE_MAC;
	w->group = *(__u8 *)eth & 1;
	if (*(__u32 *)eth == 0xffffffff && *(__u16 *)(eth + 4) == 0xffff)
		w->group = 2;
	type = *(__u16 *)(ip - 2);
	left = w->frame - ETH_BYTES;
	if (type == NET16(ETH_P_ARP))
		return wire_arp(ctx, w);
	if (type == NET16(ETH_P_IP)) {
		__u32 header, total;

		if (ip + IPV4_BYTES > behind(ctx))
			return wire_short(ctx, ETH_BYTES + IPV4_BYTES);
		header = (*(__u8 *)ip & 0xf) * 4;
		total = load_be16(ip + 2);
		if (*(__u8 *)ip >> 4 != 4 || header < IPV4_BYTES || total < header || total > left)
			return DROP_INNER_IP_MALFORMED;
		w->v6 = 0;
		w->options = header > IPV4_BYTES;
		w->checked = w->options || ipv4_checks(ip);
	} else if (type == NET16(ETH_P_IPV6)) {
		if (ip + IPV6_BYTES > behind(ctx))
			return wire_short(ctx, ETH_BYTES + IPV6_BYTES);
		if (*(__u8 *)ip >> 4 != 6 || IPV6_BYTES + load_be16(ip + 4) > left)
			return DROP_INNER_IP_MALFORMED;
		w->v6 = 1;
		w->options = 0;
	} else if (type == NET16(ETH_P_8021Q) || type == NET16(ETH_P_8021AD) || type == NET16(ETH_P_QINQ1)) {
		return DROP_INNER_VLAN;
	} else {
		return DROP_INNER_ETHERTYPE;
	}
	w->at = ETH_BYTES;
	w->upper = UPPER_NONE;
	w->src_hi = 0;
	w->dst_hi = 0;
	w->why = read_packet(ctx, w);
	return GO;
}

static __always_inline int link_local(__u64 hi)
{
	return hi >> 54 == 0x3fa;
}

static __always_inline int misaddressed(const struct nat_work *w)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 options = root ? root->options : 0;

	if (w->group == 2 || (!w->v6 && w->dst_lo == 0xffffffff))
		return DROP_INNER_BROADCAST;
	if (w->v6) {
		if (w->group || w->dst_hi >> 56 == 0xff)
			return DROP_INNER_MULTICAST;
		return unforwardable6(options, w->src_hi, w->src_lo, w->dst_hi, w->dst_lo);
	}
	if (w->group || w->dst_lo >> 28 == 0xe)
		return DROP_INNER_MULTICAST;
	return unforwardable4(options, w->src_lo, w->dst_lo);
}

/* Neighbour discovery (RFC 4861): a server speaks for its own addresses and is no router. */
static __always_inline int wire_neighbours(struct xdp_md *ctx, const struct nat_work *w, __u32 type)
{
	void *message = front(ctx) + ETH_BYTES + IPV6_BYTES;
	int targeted = type == 135 || type == 136;
	__u64 hi;

	if (w->ttl != 255 || (targeted && w->bytes < IPV6_BYTES + ND_BYTES))
		return DROP_ND_MALFORMED;
	/* Nobody sends from multicast, loopback or IPv4-mapped addresses; from the unspecified one neighbour discovery may come. */
	if ((w->src_hi | w->src_lo) && source6(w->src_hi, w->src_lo) == DROP_INNER_MARTIAN)
		return DROP_INNER_MARTIAN;
	if (!w->servers_side)
		return FREE;
	if (type == 134 || type == 137)
		return DROP_FILTER_SPOOFED;
	if (!w->known && !link_local(w->src_hi) && (w->src_hi | w->src_lo))
		return DROP_FILTER_SPOOFED;
	if (type != 136)
		return FREE;
	if (message + ND_BYTES > behind(ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	hi = load_be64(message + 8);
	return link_local(hi) || server6(w, hi, load_be64(message + 16)) ? FREE : DROP_FILTER_SPOOFED;
}

/* Multicast listener discovery (RFC 3810), without which a switch that listens in withholds solicitations. */
static __always_inline int wire_listeners(struct xdp_md *ctx, const struct nat_work *w)
{
	void *b = front(ctx) + ETH_BYTES + IPV6_BYTES;
	__u32 type;

	if (w->bytes < IPV6_BYTES + MLD_BYTES)
		return 0;
	if (b + MLD_BYTES > behind(ctx))
		return 0;
	type = *(__u8 *)(b + 8);
	if (*(__u8 *)b != IPPROTO_ICMPV6 || *(__u8 *)(b + 1))
		return 0;
	if (type != 131 && type != 132 && type != 143 && (type != 130 || w->servers_side))
		return 0;
	return (link_local(w->src_hi) || !(w->src_hi | w->src_lo)) && w->dst_hi >> 48 == 0xff02;
}

/* What a link cannot do without. FREE, GO for an ordinary packet, or a verdict. */
static __always_inline int wire_unjudged(struct xdp_md *ctx, const struct nat_work *w)
{
	__u32 next = w->key.w[0] >> 32 & 0xff, ports = w->src_port << 16 | w->dst_port;
	int udp = w->why == GO && w->upper == UPPER_UDP;

	if (!w->v6) {
		if (w->options)
			return PUNT + PUNT_INNER_OPTIONS;
		if (!w->checked)
			return DROP_INNER_IP_CHECKSUM;
		if (udp && ports == (68 << 16 | 67) && w->servers_side && (w->known || !w->src_lo) && w->dst_lo == 0xffffffff)
			return FREE;
		if (udp && ports == (67 << 16 | 68) && !w->servers_side)
			return FREE;
		return misaddressed(w);
	}
	if (next == IPPROTO_ICMPV6) {
		void *message = front(ctx) + ETH_BYTES + IPV6_BYTES;
		__u32 type;

		if (w->bytes < IPV6_BYTES + 4)
			return DROP_INNER_TRUNCATED;
		if (message + 4 > behind(ctx))
			return PUNT + PUNT_NONLINEAR_HEADERS;
		type = *(__u8 *)message;
		if (type >= 133 && type <= 137)
			return wire_neighbours(ctx, w, type);
	}
	if (next == 0 && wire_listeners(ctx, w))
		return FREE;
	/* Neighbour discovery may be behind it. */
	if (extension_header(next))
		return PUNT + (w->why & (PUNT_REASONS - 1));
	if (udp && link_local(w->src_hi)) {
		if (ports == (546 << 16 | 547) && w->servers_side && w->dst_hi == 0xff02ULL << 48 && w->dst_lo == 0x10002)
			return FREE;
		if (ports == (547 << 16 | 546) && !w->servers_side && link_local(w->dst_hi))
			return FREE;
	}
	return misaddressed(w);
}

/* The key of a server's connection: its end stands as the VM, the other one has no VNI. */
static __always_inline void server_key(struct nat_work *w, int in)
{
	__u32 ports = w->upper == UPPER_ECHO || !in ? w->src_port << 16 | w->dst_port : w->dst_port << 16 | w->src_port;

	/* An identifier is the server's both ways, and the other port 0. */
	w->key.v6 = w->v6;
	w->key.outer = 2;
	w->key.w[0] |= (__u64)w->vni << 40;
	if (w->v6) {
		w->key.w[0] |= ports;
		w->key.w[1] = in ? w->dst_hi : w->src_hi;
		w->key.w[2] = in ? w->dst_lo : w->src_lo;
		w->key.w[3] = in ? w->src_hi : w->dst_hi;
		w->key.w[4] = in ? w->src_lo : w->dst_lo;
	} else {
		w->key.w[0] |= in ? w->dst_lo : w->src_lo;
		w->key.w[1] = (in ? w->src_lo : w->dst_lo) << 32 | ports;
	}
}

/* What is behind the headers: the server, its VPC, the verdict of its session. GO, FREE, or the packet's end. */
__noinline int tunny_wire_judge(struct xdp_md *ctx, struct nat_work *w, struct end *e)
{
	__u32 vni;
	struct tunny_root *root = map_value(&tunny_root, 0);
	int end, in;

	if (!w || !e || !root)
		return DROP_TABLE_FAULT;
	end = wire_headers(ctx, w);
	if (end)
		return end;
	in = !w->servers_side;
	if (w->v6)
		vni = server6(w, in ? w->dst_hi : w->src_hi, in ? w->dst_lo : w->src_lo);
	else
		vni = server4(w, in ? w->dst_lo : w->src_lo);
	w->known = vni && (vni == w->vni || wire_vpc(root, w, e, vni));
	if (w->known) {
		e->admission = ACCEPTED;
		e->inner_bytes = ETH_BYTES + w->bytes;
	}
	end = wire_unjudged(ctx, w);
	if (end)
		return end;
	if (!w->known)
		return in ? DROP_SERVER_UNKNOWN : DROP_FILTER_SPOOFED;
	if (!(w->policy & TUNNY_POLICY_FILTER))
		return GO;
	if (w->why)
		return PUNT + (w->why & (PUNT_REASONS - 1));
	server_key(w, in);
	return by_connection(w, in, 0);
}

/* A frame's whole path. PASS: the port is no end of a wire. Negative: sent. */
__noinline int tunny_wire(struct xdp_md *ctx, struct end *e)
{
	__u32 slot = cpu_number(), place, line, other, mtu;
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_stats *stats = map_value(&tunny_stats, slot);
	struct nat_work *w = map_value(&tunny_nat_works, 0);
	struct exit x = { .ctx = ctx, .root = root, .stats = stats, .slot = slot };
	__u64 word;
	int end;

	if (!e || !root || !stats || !w)
		return PASS;
	place = wire_place(root, ctx->ingress_ifindex);
	if (place >= WIRE_ENDS)
		return PASS;
	word = READ_ONCE(root->wire_words[place / 2 & (TUNNY_WIRES_MAX - 1)]);
	w->servers = READ_ONCE(root->wire_servers[place / 2 & (TUNNY_WIRES_MAX - 1)]);
	w->servers_side = !(place & 1);
	w->frame = frame_bytes(ctx);
	w->vni = 0;
	w->known = 0;
	w->policy = 0;
	wire_vpc(root, w, e, word >> TUNNY_WIRE_VNI_SHIFT);
	end = tunny_wire_judge(ctx, w, e);
	if (end && end != FREE)
		return end;
	mtu = (w->servers_side ? word >> 16 : word) & 0xffff;
	if (w->frame - ETH_BYTES > mtu)
		return DROP_TOO_BIG;
	if (!end && w->servers_side) {
		line = tenant_meter(root, w->tenant_key);
		if (line && tunny_meter(line, e->inner_bytes, time_ns()) == RED)
			return DROP_METER_VPC;
	}
	other = READ_ONCE(root->wire_ends[place & (WIRE_ENDS - 1)]) >> 32;
	if (redirect(&tunny_ports, other) != XDP_REDIRECT)
		return DROP_TX_FAILED;
	count_accepted(&x, e);
	stats->forwarded++;
	stats->forwarded_bytes += w->frame;
	return -XDP_REDIRECT;
}

#endif

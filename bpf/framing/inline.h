/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Framing inline (role filter): a frame passes from one port of a pair to the other, unchanged. Behind one of them are servers; one lookup of
 * the server's address says whether it is behind this very pair and whose it is. The order of checks is docs/design/packet-inline.md.
 */
#ifndef TUNNY_INLINE_H
#define TUNNY_INLINE_H

#include "../addresses.h"
#include "../connection/packet.h"
#include "../tables/checksum.h"

/* It passes without being judged. Like every verdict that is no drop reason, above them. */
#define UNJUDGED (PASS + 1)
#define ARP_BYTES 28
#define ND_BYTES 24
#define MLD_BYTES 16
#define INLINE_PORTS (2 * TUNNY_INLINE_MAX)

/* 10.0.0.0: an address of which nothing special is said. */
#define ORDINARY (10 << 24)

enum { DHCP_SERVER = 67, DHCP_CLIENT = 68, DHCP6_CLIENT = 546, DHCP6_SERVER = 547 };
enum { MLD_QUERY = 130, MLD_REPORT = 131, MLD_DONE = 132, MLD2_REPORT = 143 };
enum {
	ND_ROUTER_SOLICITATION = 133,
	ND_ROUTER_ADVERTISEMENT = 134,
	ND_SOLICITATION = 135,
	ND_ADVERTISEMENT = 136,
	ND_REDIRECT = 137,
};

/* What else is known of a frame until it is clear that it is an ordinary packet. */
struct inline_frame {
	__u64 servers;		/* ROUTE_ROOT pair of the servers behind the pair */
	__u32 known;		/* its server is one of them */
	__u32 group;		/* destination MAC address: 1 a group, 2 everybody */
	__u32 options;		/* of the IPv4 header */
	__u32 checked;		/* its checksum */
};

/* Place of a port in the pairs, INLINE_PORTS if it is in none. */
static __always_inline __u32 inline_place(const struct tunny_root *root, __u32 ifindex)
{
	for (__u32 i = 0; i < INLINE_PORTS; i++) {
		if ((__u32)READ_ONCE(root->wire_ends[i]) == ifindex)
			return i;
	}
	return INLINE_PORTS;
}

static __always_inline __u32 server_vni(__u32 value)
{
	return value >> TUNNY_VALUE_SCOPE_SHIFT == TUNNY_SCOPE_LOCAL ? value & TUNNY_VALUE_ARG_MASK : 0;
}

/* VNI of the server behind the pair that has an address, 0 if none has it. */
static __always_inline __u32 server4(const struct inline_frame *f, __u32 addr)
{
	return server_vni(route32(f->servers, addr));
}

static __always_inline __u32 server6(const struct inline_frame *f, __u64 hi, __u64 lo)
{
	return server_vni(route128(f->servers >> 32, hi, lo));
}

/* The VPC that the frame is counted for. */
static __always_inline int inline_vpc(const struct tunny_root *root, struct flow *w, struct end *e, __u32 vni)
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
static __always_inline int inline_arp(struct frame_ctx *ctx, const struct flow *w, const struct inline_frame *f)
{
	void *arp = front(ctx) + ETH_BYTES;
	__u32 sender;

	if (arp + ARP_BYTES > behind(ctx))
		return buffers_bytes(ctx) < ETH_BYTES + ARP_BYTES ? DROP_ARP_MALFORMED : PUNT + PUNT_NONLINEAR_HEADERS;
	if (load_be64(arp) >> 16 != 0x000108000604)
		return DROP_ARP_MALFORMED;
	sender = load_be32(arp + 14);
	return w->server == SERVER_SENDS && sender && !server4(f, sender) ? DROP_FILTER_SPOOFED : UNJUDGED;
}

/* Are `need` bytes of the frame in its first buffer? Else what that means for the frame. */
static __always_inline int inline_short(struct frame_ctx *ctx, __u32 need)
{
	return buffers_bytes(ctx) < need ? DROP_INNER_TRUNCATED : PUNT + PUNT_NONLINEAR_HEADERS;
}

/* The frame's headers. GO: an IP packet, and w->why says why the fast path does not judge it, if it does not. */
static __always_inline int inline_headers(struct frame_ctx *ctx, struct flow *w, struct inline_frame *f)
{
	void *eth = front(ctx), *ip = eth + ETH_BYTES;
	__u32 left;
	__u16 type;

	if (ip > behind(ctx))
		return inline_short(ctx, ETH_BYTES);
	if (*(__u8 *)(eth + 6) & 1)
		return DROP_INNER_MULTICAST_SOURCE_MAC;
	f->group = *(__u8 *)eth & 1;
	if (*(__u32 *)eth == 0xffffffff && *(__u16 *)(eth + 4) == 0xffff)
		f->group = 2;
	type = *(__u16 *)(ip - 2);
	left = w->frame - ETH_BYTES;
	if (type == NET16(ETH_P_ARP))
		return inline_arp(ctx, w, f);
	if (type == NET16(ETH_P_IP)) {
		__u32 header, total;

		if (ip + IPV4_BYTES > behind(ctx))
			return inline_short(ctx, ETH_BYTES + IPV4_BYTES);
		header = (*(__u8 *)ip & 0xf) * 4;
		total = load_be16(ip + 2);
		if (*(__u8 *)ip >> 4 != 4 || header < IPV4_BYTES || total < header || total > left)
			return DROP_INNER_IP_MALFORMED;
		w->v6 = 0;
		f->options = header > IPV4_BYTES;
		f->checked = f->options || ipv4_checks(ip);
	} else if (type == NET16(ETH_P_IPV6)) {
		if (ip + IPV6_BYTES > behind(ctx))
			return inline_short(ctx, ETH_BYTES + IPV6_BYTES);
		if (*(__u8 *)ip >> 4 != 6 || IPV6_BYTES + load_be16(ip + 4) > left)
			return DROP_INNER_IP_MALFORMED;
		w->v6 = 1;
		f->options = 0;
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
	return hi >> 54 == 0xfe80 >> 6;
}

static __always_inline int misaddressed(const struct tunny_root *root, const struct flow *w, const struct inline_frame *f)
{
	if (f->group == 2 || (!w->v6 && w->dst_lo == 0xffffffff))
		return DROP_INNER_BROADCAST;
	if (w->v6) {
		if (f->group || w->dst_hi >> 56 == 0xff)
			return DROP_INNER_MULTICAST;
		return unforwardable6(root->options, w->src_hi, w->src_lo, w->dst_hi, w->dst_lo);
	}
	if (f->group || w->dst_lo >> 28 == 0xe)
		return DROP_INNER_MULTICAST;
	return unforwardable4(root->options, w->src_lo, w->dst_lo);
}

/* Neighbour discovery (RFC 4861): a server speaks for its own addresses and is no router. */
static __always_inline int inline_neighbours(struct frame_ctx *ctx, const struct flow *w, const struct inline_frame *f, __u32 type)
{
	void *message = front(ctx) + ETH_BYTES + IPV6_BYTES;
	int targeted = type == ND_SOLICITATION || type == ND_ADVERTISEMENT;
	__u64 hi;

	if (w->ttl != 255 || (targeted && w->bytes < IPV6_BYTES + ND_BYTES))
		return DROP_ND_MALFORMED;
	/* Nobody sends from multicast, loopback or IPv4-mapped addresses; from the unspecified one neighbour discovery may come. */
	if ((w->src_hi | w->src_lo) && source6(w->src_hi, w->src_lo) == DROP_INNER_MARTIAN)
		return DROP_INNER_MARTIAN;
	if (w->server == SERVER_GETS)
		return UNJUDGED;
	if (type == ND_ROUTER_ADVERTISEMENT || type == ND_REDIRECT)
		return DROP_FILTER_SPOOFED;
	if (!f->known && !link_local(w->src_hi) && (w->src_hi | w->src_lo))
		return DROP_FILTER_SPOOFED;
	if (type != ND_ADVERTISEMENT)
		return UNJUDGED;
	if (message + ND_BYTES > behind(ctx))
		return PUNT + PUNT_NONLINEAR_HEADERS;
	hi = load_be64(message + 8);
	return link_local(hi) || server6(f, hi, load_be64(message + 16)) ? UNJUDGED : DROP_FILTER_SPOOFED;
}

/* Multicast listener discovery (RFC 3810), without which a switch that listens in withholds solicitations. */
static __always_inline int inline_listeners(struct frame_ctx *ctx, const struct flow *w)
{
	void *b = front(ctx) + ETH_BYTES + IPV6_BYTES;
	__u32 type;

	if (w->bytes < IPV6_BYTES + MLD_BYTES)
		return 0;
	if (b + MLD_BYTES > behind(ctx))
		return 0;
	type = *(__u8 *)(b + 8);
	if (w->ttl != 1 || *(__u8 *)b != IPPROTO_ICMPV6 || *(__u8 *)(b + 1))
		return 0;
	if (type != MLD_REPORT && type != MLD_DONE && type != MLD2_REPORT && (type != MLD_QUERY || w->server == SERVER_SENDS))
		return 0;
	return (link_local(w->src_hi) || !(w->src_hi | w->src_lo)) && w->dst_hi >> 48 == 0xff02;
}

/* What a link cannot do without. UNJUDGED, GO for an ordinary packet, or a verdict. */
static __always_inline int inline_unjudged(struct frame_ctx *ctx, const struct tunny_root *root, const struct flow *w,
					   const struct inline_frame *f)
{
	__u32 next = w->key.w[0] >> 32 & 0xff, ports = w->src_port << 16 | w->dst_port;
	int udp = w->why == GO && w->upper == UPPER_UDP;

	if (!w->v6) {
		if (f->options)
			return PUNT + PUNT_INNER_OPTIONS;
		if (!f->checked)
			return DROP_INNER_IP_CHECKSUM;
		if (udp && ports == (DHCP_CLIENT << 16 | DHCP_SERVER) && w->server == SERVER_SENDS && (f->known || !w->src_lo) && w->dst_lo == 0xffffffff)
			return UNJUDGED;
		if (udp && ports == (DHCP_SERVER << 16 | DHCP_CLIENT) && w->server == SERVER_GETS &&
		    (w->dst_lo == 0xffffffff || w->dst_lo >> 28 != 0xe)) {
			/* An answer to everybody has no destination that could be special. */
			int bad = unforwardable4(root->options, w->src_lo, w->dst_lo == 0xffffffff ? ORDINARY : w->dst_lo);

			return bad ? bad : UNJUDGED;
		}
		return misaddressed(root, w, f);
	}
	if (next == IPPROTO_ICMPV6) {
		void *message = front(ctx) + ETH_BYTES + IPV6_BYTES;
		__u32 type;

		if (w->bytes < IPV6_BYTES + 4)
			return DROP_INNER_TRUNCATED;
		if (message + 4 > behind(ctx))
			return PUNT + PUNT_NONLINEAR_HEADERS;
		type = *(__u8 *)message;
		if (type >= ND_ROUTER_SOLICITATION && type <= ND_REDIRECT)
			return inline_neighbours(ctx, w, f, type);
	}
	if (next == 0 && inline_listeners(ctx, w))
		return UNJUDGED;
	/* Neighbour discovery may be behind it. */
	if (extension_header(next))
		return PUNT + (w->why & (PUNT_REASONS - 1));
	if (udp && link_local(w->src_hi)) {
		if (ports == (DHCP6_CLIENT << 16 | DHCP6_SERVER) && w->server == SERVER_SENDS && w->dst_hi == 0xff02ULL << 48 && w->dst_lo == 0x10002)
			return UNJUDGED;
		if (ports == (DHCP6_SERVER << 16 | DHCP6_CLIENT) && w->server == SERVER_GETS && link_local(w->dst_hi))
			return UNJUDGED;
	}
	return misaddressed(root, w, f);
}

/* The pair of the port by which a frame came, and where it leaves. PASS: there is none. */
static __always_inline int inline_pair(struct frame_ctx *ctx, const struct tunny_root *root, struct flow *w, struct end *e,
				       struct inline_frame *f)
{
	__u32 place = inline_place(root, port_of(ctx)), pair = place / 2 & (TUNNY_INLINE_MAX - 1);
	__u64 word;

	if (place >= INLINE_PORTS)
		return PASS;
	word = READ_ONCE(root->wire_words[pair]);
	f->servers = READ_ONCE(root->wire_servers[pair]);
	f->known = 0;
	w->server = place & 1 ? SERVER_GETS : SERVER_SENDS;
	w->egress = READ_ONCE(root->wire_ends[place & (INLINE_PORTS - 1)]) >> 32;
	w->mtu = (place & 1 ? word : word >> 16) & 0xffff;
	w->frame = frame_bytes(ctx);
	w->vni = 0;
	w->policy = 0;
	w->tenant_key = 0;
	inline_vpc(root, w, e, word >> TUNNY_INLINE_VNI_SHIFT);
	return GO;
}

/*
 * Fills the flow of a frame: its pair, its headers, the server, its VPC. GO: a packet of a connection; w->why: why the fast path does not
 * judge it, if so. UNJUDGED: something that a link needs. Else a verdict. A global function, for its stack.
 */
__noinline int tunny_inline_decapsulate(struct frame_ctx *ctx, struct flow *w, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct inline_frame f;
	__u32 vni;
	int end, in;

	if (!w || !e || !root)
		return PASS;
	end = inline_pair(ctx, root, w, e, &f);
	if (!end)
		end = inline_headers(ctx, w, &f);
	if (end)
		return end;
	in = w->server == SERVER_GETS;
	if (w->v6)
		vni = server6(&f, in ? w->dst_hi : w->src_hi, in ? w->dst_lo : w->src_lo);
	else
		vni = server4(&f, in ? w->dst_lo : w->src_lo);
	f.known = vni && (vni == w->vni || inline_vpc(root, w, e, vni));
	if (f.known) {
		e->admission = ACCEPTED;
		e->inner_bytes = ETH_BYTES + w->bytes;
	}
	end = inline_unjudged(ctx, root, w, &f);
	if (end)
		return end;
	if (!f.known)
		return in ? DROP_SERVER_UNKNOWN : DROP_FILTER_SPOOFED;
	return unlikely(w->policy & TUNNY_POLICY_PATH_SOFTWARE) && !tunny_probes.only ? PUNT + PUNT_PATH_SOFTWARE : GO;
}

/* The frame leaves as it came, if it fits. */
static __always_inline int inline_encapsulate(const struct flow *w)
{
	return w->frame - ETH_BYTES > w->mtu ? DROP_TOO_BIG : GO;
}

#endif

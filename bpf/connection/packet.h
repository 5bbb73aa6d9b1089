/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What is known of a packet's connection: its addresses and ports, its session's key, and whether it is one that changes nothing of an
 * established session.
 */
#ifndef TUNNY_CONNECTION_PACKET_H
#define TUNNY_CONNECTION_PACKET_H

#include "../packet.h"
#include "../tables/lpm.h"
#include "../tables/session.h"
#include "../tables/vm.h"
#include "../states/memory.h"

#define TCP_BYTES 20
#define ICMP_BYTES 8
#define TCP_ACK 0x10
/* Flags that change nothing: ACK, PSH, ECE, CWR. */
#define TCP_SETTLED 0xd8

enum upper { UPPER_NONE, UPPER_TCP, UPPER_UDP, UPPER_ECHO };

/* Which end of a connection is a server behind an inline pair. */
enum server { NO_SERVER, SERVER_SENDS, SERVER_GETS };

/*
 * What is known of a packet's connection. In memory, because global functions get its address; struct packet is in registers and has none.
 * So what both have is copied once, by flow_of and where a framing fills in a flow.
 */
struct flow {
	struct session_key key;
	struct segment segment;
	struct walk walk;
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u64 policy;
	__u64 tenant_key;
	__u32 at;		/* offset of the IP header */
	__u32 bytes;		/* of the IP packet */
	__u32 frame;		/* bytes of the frame */
	__u32 inner_bytes;	/* of the inner frame, as received */
	__u32 v6;
	__u32 upper;
	__u32 flags;		/* TCP */
	__u32 src_port;
	__u32 dst_port;		/* ICMP echo: 0, and the identifier in src_port */
	__u32 vni;
	__u32 ttl;
	__u32 tos;		/* as it is to be sent */
	__u32 line;		/* of the session's record; of the filter, before it is looked up: if it seems to have one, else 0 */
	__u32 port;		/* of the VM; of what leaves: its public one */
	__u32 public_addr;	/* of an IPv4 packet that leaves */
	__u32 nexthop;		/* line of the next hop of what leaves */
	__u64 state;
	__u32 why;		/* why the software path must have it, if it is a packet of a connection */
	__u32 to_vni;		/* of the other end inside */
	__u64 sender_hi;	/* outer source */
	__u64 sender_lo;
	__u32 sender_v6;
	__u32 egress;		/* of a server's packet: the port by which it leaves */
	__u32 mtu;		/* of that port */
	__u32 server;		/* enum server */
	__u32 from_line;	/* it came by a customer's circuit */
	__u32 circuit;		/* that it leaves by: its key by tags */
	__u32 tags;		/* how many those are */
	__u64 ce;		/* MAC address at the other end */
	__u32 in;		/* the packet is towards the end that stands as the VM in the key */
	struct state_key state_key;
	struct segments segments;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} tunny_flows SEC(".maps");

/* What a packet in a tunnel tells of its connection. */
static __always_inline void flow_of(struct flow *w, const struct packet *p)
{
	w->at = p->inner_at + ETH_BYTES;
	w->frame = p->bytes;
	w->inner_bytes = p->inner_bytes;
	w->v6 = p->inner_v6;
	w->vni = p->vni;
	w->segments = p->end->segments;
	w->server = NO_SERVER;
	w->from_line = p->edge;
}

/* An IPv6 extension header that the software path looks into: docs/design/extension-headers.md */
static __always_inline int extension_header(__u32 next)
{
	return next == PROTO_HOPOPTS || next == PROTO_ROUTING || next == PROTO_FRAGMENT || next == PROTO_AH ||
	       next == PROTO_DSTOPTS || next == PROTO_MOBILITY || next == PROTO_HIP || next == PROTO_SHIM6;
}

/* Bytes of a TCP header with `bytes` bytes behind it and with it. 0: it is malformed. */
static __always_inline __u32 tcp_header(const void *l4, __u32 bytes)
{
	__u32 header = (*(__u8 *)(l4 + 12) >> 4) * 4;

	return header < TCP_BYTES || header > bytes ? 0 : header;
}

static __always_inline void read_segment(struct segment *s, const void *l4, __u32 payload)
{
	s->seq = load_be32(l4 + 4);
	s->end = s->seq + payload;
	s->ack = load_be32(l4 + 8);
	s->window = load_be16(l4 + 14);
}

/* The upper header at `at` with `bytes` bytes. Returns GO, or why the fast path does not serve it. */
static __always_inline int read_upper(struct frame_ctx *ctx, struct flow *w, __u32 proto, __u32 at, __u32 bytes)
{
	void *l4;
	__u32 header;

	if (at > 0x3fff)
		return PUNT_NONLINEAR_HEADERS;
	l4 = front(ctx) + at;
	if (proto == IPPROTO_TCP) {
		if (bytes < TCP_BYTES)
			return PUNT_SESSION_CONTROL;
		if (l4 + TCP_BYTES > behind(ctx))
			return PUNT_NONLINEAR_HEADERS;
		header = tcp_header(l4, bytes);
		if (!header)
			return PUNT_SESSION_CONTROL;
		w->upper = UPPER_TCP;
		w->flags = *(__u8 *)(l4 + 13);
		read_segment(&w->segment, l4, bytes - header);
	} else if (proto == IPPROTO_UDP) {
		if (bytes < UDP_BYTES)
			return PUNT_SESSION_CONTROL;
		if (l4 + UDP_BYTES > behind(ctx))
			return PUNT_NONLINEAR_HEADERS;
		w->upper = UPPER_UDP;
	} else if (proto == (w->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		__u32 type;

		if (bytes < ICMP_BYTES)
			return PUNT_SESSION_CONTROL;
		if (l4 + ICMP_BYTES > behind(ctx))
			return PUNT_NONLINEAR_HEADERS;
		type = load_be16(l4);
		if (w->v6 ? type != 128 << 8 && type != 129 << 8 : type != 8 << 8 && type != 0)
			return PUNT_NAT_ICMP;
		w->upper = UPPER_ECHO;
		w->src_port = load_be16(l4 + 4);
		w->dst_port = 0;
		return GO;
	} else {
		return w->v6 && proto == PROTO_FRAGMENT ? PUNT_NAT_FRAGMENT : PUNT_SESSION_CONTROL;
	}
	w->src_port = load_be16(l4);
	w->dst_port = load_be16(l4 + 2);
	return GO;
}

/* The packet at w->at, whose header parse has seen. Returns as read_upper. */
static __always_inline int read_packet(struct frame_ctx *ctx, struct flow *w)
{
	void *ip;
	__u32 at = w->at, proto;

	if (at > 0xff)
		return PUNT_NONLINEAR_HEADERS;
	ip = front(ctx) + at;
	if (w->v6) {
		if (ip + IPV6_BYTES > behind(ctx))
			return PUNT_NONLINEAR_HEADERS;
		w->bytes = IPV6_BYTES + load_be16(ip + 4);
		w->src_hi = load_be64(ip + 8);
		w->src_lo = load_be64(ip + 16);
		w->dst_hi = load_be64(ip + 24);
		w->dst_lo = load_be64(ip + 32);
		w->ttl = *(__u8 *)(ip + 7);
		proto = *(__u8 *)(ip + 6);
		w->key.w[0] = (__u64)proto << 32;
		return read_upper(ctx, w, proto, at + IPV6_BYTES, w->bytes - IPV6_BYTES);
	}
	if (ip + IPV4_BYTES > behind(ctx))
		return PUNT_NONLINEAR_HEADERS;
	w->bytes = load_be16(ip + 2);
	w->src_lo = load_be32(ip + 12);
	w->dst_lo = load_be32(ip + 16);
	w->ttl = *(__u8 *)(ip + 8);
	proto = *(__u8 *)(ip + 9);
	w->key.w[0] = (__u64)proto << 32;
	if (load_be16(ip + 6) & (IP_OFFSET | IP_MF))
		return PUNT_NAT_FRAGMENT;
	return read_upper(ctx, w, proto, at + IPV4_BYTES, w->bytes - IPV4_BYTES);
}

/* The key of a packet outwards; key.w[0] holds the protocol. */
static __always_inline void inner_key(struct flow *w)
{
	__u32 ports = w->src_port << 16 | w->dst_port;

	w->key.v6 = w->v6;
	w->key.outer = 0;
	w->key.w[0] |= (__u64)w->vni << 40;
	if (w->v6) {
		w->key.w[0] |= ports;
		w->key.w[1] = w->src_hi;
		w->key.w[2] = w->src_lo;
		w->key.w[3] = w->dst_hi;
		w->key.w[4] = w->dst_lo;
	} else {
		w->key.w[0] |= w->src_lo;
		w->key.w[1] = w->dst_lo << 32 | ports;
	}
}

/* The key of a packet inwards. An identifier is the near port both ways. */
static __always_inline void outer_key(struct flow *w)
{
	__u32 ports = w->upper == UPPER_ECHO ? w->src_port << 16 : w->dst_port << 16 | w->src_port;

	w->key.v6 = w->v6;
	w->key.outer = 1;
	if (w->v6) {
		w->key.w[0] |= ports;
		w->key.w[1] = w->dst_hi;
		w->key.w[2] = w->dst_lo;
		w->key.w[3] = w->src_hi;
		w->key.w[4] = w->src_lo;
	} else {
		w->key.w[0] |= w->dst_lo;
		w->key.w[1] = w->src_lo << 32 | ports;
	}
}

/*
 * Is the session established, and the packet one that changes nothing of it? flags: of TCP, else 0; policy: of its VPCs. Returns GO or a
 * punt reason.
 */
static __always_inline int session_judges(const struct tunny_session_record *r, __u64 state, int tcp, __u32 flags, __u64 policy, int in)
{
	__u32 number = state & TUNNY_SESSION_STATE_MASK;
	int outside = !!(state & TUNNY_SESSION_FROM_OUTSIDE);

	if (number < TUNNY_SESSION_FAST_FIRST || number > TUNNY_SESSION_FAST_LAST || state & TUNNY_SESSION_DOUBT)
		return PUNT_SESSION_CONTROL;
	if (number == TUNNY_SESSION_ONE_WAY && outside != in)
		return PUNT_SESSION_CONTROL;
	if (tcp && (flags & ~TCP_SETTLED || !(flags & TCP_ACK)))
		return PUNT_SESSION_CONTROL;
	if (READ_ONCE(r->count) & TUNNY_SESSION_COUNT_SPILL)
		return PUNT_SESSION_CONTROL;
	if ((READ_ONCE(r->outer) & 0xffff) != (policy >> TUNNY_POLICY_EPOCH_SHIFT & 0xffff))
		return PUNT_SESSION_STALE;
	if (unlikely(policy & TUNNY_POLICY_PATH_SESSIONS) && !tunny_probes.only)
		return PUNT_PATH_SOFTWARE;
	return policy & TUNNY_POLICY_SOFTWARE ? PUNT_SESSION_SOFTWARE : GO;
}

static __always_inline int session_verdict(const struct flow *w, const struct tunny_session_record *r, __u64 state, int in)
{
	return session_judges(r, state, w->upper == UPPER_TCP, w->flags, w->policy, in);
}

/* The session takes packets, by a word that session_count made; s: of TCP. */
static __always_inline void session_takes(struct tunny_session_record *r, __u64 state, int tcp, const struct segment *s, __u64 count, int in)
{
	int alive;

	if (tunny_probes.only)
		return;
	alive = tcp ? session_progress(r, state, s, in) : 1;
	session_touch(r, alive, count, time_tick_ns());
}

static __always_inline void take(const struct flow *w, struct tunny_session_record *r, __u64 state, int in)
{
	__u64 count = session_count(packets_in(&w->segments), bytes_in(&w->segments, w->bytes, -ETH_BYTES));

	session_takes(r, state, w->upper == UPPER_TCP, &w->segment, count, in);
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * nat: established sessions to the Internet (decapsulated) and from it (encapsulated). What else they need (a new session, a
 * change of state, an ICMP error, a fragment) is the software path's: docs/design/packet-path.md, section Nat.
 *
 * A packet of a VPC without a way to the Internet meets one test here. The rest lies in global functions, verified once and out of
 * the way: tunny_nat_out, before route, and tunny_nat_find and tunny_nat_deliver, for what parse would leave to the host. They
 * answer a verdict as a stage does, or -action for a packet that was sent.
 */
#ifndef TUNNY_NAT_H
#define TUNNY_NAT_H

#include "packet.h"
#include "route.h"
#include "locate.h"
#include "meter.h"
#include "rewrite.h"
#include "emit.h"
#include "../tables/session.h"

#define TCP_BYTES 20
#define ICMP_BYTES 8
#define TCP_ACK 0x10
/* Flags that change nothing: ACK, PSH, ECE, CWR. */
#define TCP_SETTLED 0xd8

enum upper { UPPER_NONE, UPPER_TCP, UPPER_UDP, UPPER_ECHO };

/* What both directions know of a packet. In memory, because its address is given to functions. */
struct nat_work {
	struct session_key key;
	struct segment segment;
	struct walk walk;
	__u64 src_hi;
	__u64 src_lo;
	__u64 dst_hi;
	__u64 dst_lo;
	__u64 policy;
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
	__u32 meter;
	__u32 ttl;
	__u32 tos;		/* as it is to be sent */
	__u32 line;		/* of the session's record */
	__u32 port;		/* of the VM */
	__u64 state;
	__u32 why;		/* why the software path must have it, if the way is the Internet */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct nat_work);
} tunny_nat_works SEC(".maps");

/*
 * The packet's bounds. Loaded by hand: in functions of this size the compiler puts the extension of a 32-bit load apart from it,
 * and the verifier forgets what it was.
 */
static __always_inline void *front(struct xdp_md *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(at) : "r"(ctx));
	return at;
}

static __always_inline void *behind(struct xdp_md *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 4)" : "=r"(at) : "r"(ctx));
	return at;
}

/* ---- what the packet is ---- */

/* The upper header at `at` with `bytes` bytes. Returns GO, or why the fast path does not serve it. */
static __always_inline int read_upper(struct xdp_md *ctx, struct nat_work *w, __u32 proto, __u32 at, __u32 bytes)
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
		header = (*(__u8 *)(l4 + 12) >> 4) * 4;
		if (header < TCP_BYTES || header > bytes)
			return PUNT_SESSION_CONTROL;
		w->upper = UPPER_TCP;
		w->flags = *(__u8 *)(l4 + 13);
		w->segment.seq = load_be32(l4 + 4);
		w->segment.end = w->segment.seq + (bytes - header);
		w->segment.ack = load_be32(l4 + 8);
		w->segment.window = load_be16(l4 + 14);
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
static __always_inline int read_packet(struct xdp_md *ctx, struct nat_work *w)
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
static __always_inline void inner_key(struct nat_work *w)
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
static __always_inline void outer_key(struct nat_work *w)
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

/* Is the session settled, and the packet one that changes nothing of it? Returns GO or a punt reason. */
static __always_inline int settled(const struct nat_work *w, const struct tunny_session_record *r, __u64 state, int in)
{
	__u32 number = state & TUNNY_SESSION_STATE_MASK;
	int outside = !!(state & TUNNY_SESSION_FROM_OUTSIDE);

	if (number < TUNNY_SESSION_FAST_FIRST || number > TUNNY_SESSION_FAST_LAST || state & TUNNY_SESSION_DOUBT)
		return PUNT_SESSION_CONTROL;
	if (number == TUNNY_SESSION_ONE_WAY && outside != in)
		return PUNT_SESSION_CONTROL;
	if (w->upper == UPPER_TCP && (w->flags & ~TCP_SETTLED || !(w->flags & TCP_ACK)))
		return PUNT_SESSION_CONTROL;
	if (READ_ONCE(r->count) & TUNNY_SESSION_COUNT_SPILL)
		return PUNT_SESSION_CONTROL;
	if ((READ_ONCE(r->outer) & 0xffff) != (w->policy >> TUNNY_POLICY_EPOCH_SHIFT & 0xffff))
		return PUNT_SESSION_STALE;
	return w->policy & TUNNY_POLICY_SOFTWARE ? PUNT_SESSION_SOFTWARE : GO;
}

/* The session takes the packet. */
static __always_inline void take(const struct nat_work *w, struct tunny_session_record *r, __u64 state, int in)
{
	int alive = w->upper == UPPER_TCP ? session_progress(r, state, &w->segment, in) : 1;

	session_touch(r, alive, w->bytes, bpf_ktime_get_coarse_ns());
}

/* ---- translation ---- */

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

/* ---- outwards ---- */

/* The next hop towards the Internet for a flow. Returns GO or the verdict. */
static __always_inline int internet_nexthop(struct tunny_root *root, __u32 v6, __u64 flow, struct tunny_nexthop **hop)
{
	__u64 word = READ_ONCE(root->internet);
	__u32 line = v6 ? word >> 32 : word, count, member;
	struct tunny_nexthop_group *group;

	if (!line)
		return DROP_UNDERLAY_NO_ROUTE;
	group = line_at(line);
	if (!group)
		return DROP_TABLE_FAULT;
	count = READ_ONCE(group->count);
	if (!count || count > TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	member = tunny_bucket_of(flow, count);
	OPAQUE(member);
	if (member >= TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	line = READ_ONCE(group->members[member]);
	*hop = line ? line_at(line) : NULL;
	if (!*hop)
		return DROP_UNDERLAY_NO_ROUTE;
	return READ_ONCE((*hop)->dmac) & TUNNY_NEXTHOP_READY ? GO : PUNT + PUNT_NEXTHOP_UNRESOLVED;
}

/* Hash of the flow as it leaves with this source. */
static __always_inline __u64 leaving(const struct nat_work *w, __u32 addr, __u32 port)
{
	__u32 proto = w->key.w[0] >> 32 & 0xff, ports = w->src_port << 16 | w->dst_port;

	if (w->upper == UPPER_ECHO)
		ports = 0;
	else if (ports)
		ports = port << 16 | w->dst_port;
	if (w->v6)
		return tunny_flow_hash_v6(w->src_hi, w->src_lo, w->dst_hi, w->dst_lo, proto, ports);
	return tunny_flow_hash_v4(addr, w->dst_lo, proto, ports);
}

/* Bytes behind the packet and the tunnel in front of it go. -1 if the driver refuses. */
static __always_inline int unwrap(struct xdp_md *ctx, const struct nat_work *w)
{
	__u32 end = w->at + w->bytes;

	if (w->frame > end && bpf_xdp_adjust_tail(ctx, (int)(end - w->frame)))
		return -1;
	return bpf_xdp_adjust_head(ctx, (int)w->at - ETH_BYTES);
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
		*(__u16 *)(data + 12) = bpf_htons(ETH_P_IPV6);
		store_be32(ip, (load_be32(ip) & 0xf00fffff) | w->tos << 20);
		*(__u8 *)(ip + 7) -= 1;
		return 0;
	}
	*(__u16 *)(data + 12) = bpf_htons(ETH_P_IP);
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

static __always_inline int transmit(struct xdp_md *ctx, __u32 ifindex)
{
	int action;

	if (ifindex == ctx->ingress_ifindex && !READ_ONCE(tunny_redirect_back))
		return XDP_TX;
	action = bpf_redirect_map(&tunny_ports, ifindex, XDP_DROP);
	return action == XDP_REDIRECT ? action : 0;
}

/* Is the remote side one of our own public addresses? */
static __always_inline int hairpin(struct tunny_root *root, const struct nat_work *w)
{
	__u64 roots = READ_ONCE(root->public_roots);

	return w->v6 ? route128(roots >> 32, w->dst_hi, w->dst_lo) : route32(roots, w->dst_lo);
}

/*
 * A packet of a VM. Negative: sent. GO: not by the fast path, w->why says why not, if the route leads to the Internet. Else a
 * verdict.
 */
__noinline int tunny_nat_out(struct xdp_md *ctx, struct nat_work *w)
{
	__u32 zero = 0, line, addr, port, ifindex;
	struct tunny_root *root = bpf_map_lookup_elem(&tunny_root, &zero);
	struct tunny_session_record *r;
	struct tunny_nexthop *hop = NULL;
	__u64 state;
	int end;

	if (!w || !root)
		return DROP_TABLE_FAULT;
	w->why = read_packet(ctx, w);
	if (w->why)
		return GO;
	inner_key(w);
	w->why = PUNT_SESSION_NEW;
	line = tunny_session_find(&w->key);
	r = line ? session_line(line) : NULL;
	if (!r)
		return GO;
	state = READ_ONCE(r->state);
	w->why = settled(w, r, state, 0);
	if (w->why)
		return GO;
	if (hairpin(root, w)) {
		w->why = PUNT_NAT_HAIRPIN;
		return GO;
	}
	if (w->ttl <= 1)
		return icmp_or(root->options, DROP_TTL_EXPIRED);
	addr = READ_ONCE(r->outer) >> 32;
	port = w->v6 ? w->src_port : READ_ONCE(r->outer) >> 16 & 0xffff;
	end = internet_nexthop(root, w->v6, leaving(w, addr, port), &hop);
	if (end)
		return end;
	if (!hop)
		return DROP_UNDERLAY_NO_ROUTE;
	if (w->bytes > READ_ONCE(hop->smac_mtu) >> 48)
		return PUNT + PUNT_ICMP_DUE;
	if (w->meter && tunny_meter(w->meter, w->inner_bytes, bpf_ktime_get_ns()) == RED)
		return DROP_METER_VPC;
	ifindex = hop->ifindex;
	if (unwrap(ctx, w) || rewrite_plain(ctx, w, hop, addr, port))
		return DROP_TX_FAILED;
	end = transmit(ctx, ifindex);
	if (!end)
		return DROP_TX_FAILED;
	take(w, r, state, 0);
	return -end;
}

/* Serves a packet outwards, and counts it as emit would. */
static __always_inline int nat_serve(struct packet *p, struct nat_work *w)
{
	int end = tunny_nat_out(p->ctx, w);

	if (end >= 0)
		return end;
	count_ingress(p);
	p->stats->forwarded++;
	p->stats->forwarded_bytes += ETH_BYTES + w->bytes;
	return end;
}

/* The hook before route. GO: the packet is routed. Negative: it was sent. */
static __always_inline int nat(struct packet *p)
{
	__u64 policy;
	__u32 zero = 0;
	struct nat_work *w;

	if (likely(!(p->tenant_key & TUNNY_TENANT_NAT)) || (p->own && p->roots & TUNNY_ROOT_SIMPLE))
		return GO;
	policy = tenant_policy(p->root, p->tenant_key);
	if (!(policy & TUNNY_POLICY_NAT))
		return GO;
	w = bpf_map_lookup_elem(&tunny_nat_works, &zero);
	if (!w)
		return DROP_TABLE_FAULT;
	w->why = 0;
	w->at = p->inner_at + ETH_BYTES;
	w->frame = p->bytes;
	w->inner_bytes = p->inner_bytes;
	w->v6 = p->inner_v6;
	w->vni = p->vni;
	w->policy = policy;
	w->meter = tenant_meter(p->root, p->tenant_key);
	w->tos = new_inner_tos(p);
	p->nat = 1;
	/* The destination may be a VM in the chain of its bucket, or an IPv6 one: then the route is asked first. */
	if (p->roots & TUNNY_ROOT_SIMPLE && (p->inner_v6 || vm4_rest(p->vm_bucket, p->vm_line)))
		return GO;
	return nat_serve(p, w);
}

/* The verdict of route. If the way is the Internet, nat says what becomes of the packet. Negative: it was sent. */
static __always_inline int nat_verdict(struct packet *p, int end)
{
	__u32 zero = 0;
	struct nat_work *w;
	struct walk *walk;

	if (likely(end != DROP_SCOPE_INTERNET))
		return end;
	w = bpf_map_lookup_elem(&tunny_nat_works, &zero);
	walk = bpf_map_lookup_elem(&tunny_walks, &zero);
	if (!w || !walk)
		return DROP_TABLE_FAULT;
	/* Nobody lends his way out to a peer. */
	if (!(tenant_policy(p->root, p->tenant_key) & TUNNY_POLICY_NAT) || walk->hops)
		return end;
	/* A VM's entry went away under our eyes. */
	if (unlikely(!p->nat))
		return PUNT + PUNT_SESSION_NEW;
	if (!w->why) {
		end = nat_serve(p, w);
		if (end)
			return end;
	}
	return PUNT + (w->why & (PUNT_REASONS - 1));
}

/* ---- inwards ---- */

/* The VPC of the session: its record, and what the ways out need to know. Returns GO or a verdict. */
static __always_inline int enter_vpc(struct tunny_root *root, struct nat_work *w, struct end *e)
{
	struct tenant t;

	if (!tenant_lookup(root, w->vni, &t))
		return DROP_NAT_UNSOLICITED;
	w->policy = tenant_policy(root, t.key);
	if (!(w->policy & TUNNY_POLICY_NAT))
		return DROP_NAT_UNSOLICITED;
	w->walk.roots = t.roots;
	w->walk.gateway_mac = t.mac;
	e->vni = w->vni;
	e->tenant = tenant_id(t.key);
	e->standing = ATTRIBUTED;
	return GO;
}

/* The VM of the session, in the VM-NC table. */
static __always_inline void find_target(struct tunny_root *root, struct nat_work *w, struct tunny_session_record *r)
{
	struct tunny_session_addresses *a;

	w->walk.hops = 0;
	w->walk.own_line = 0;
	w->walk.vni = w->vni;
	w->walk.v6 = w->v6;
	w->walk.dst_hi = 0;
	w->walk.dst_lo = READ_ONCE(r->inner0) & 0xffffffff;
	w->walk.found = 0;
	if (w->v6) {
		a = session_second(w->line);
		if (!a)
			return;
		w->walk.dst_hi = a->vm_hi;
		w->walk.dst_lo = a->vm_lo;
	}
	w->walk.found = find_vm(root, &w->walk);
}

/* Hash of the flow as the VM gets it. */
static __always_inline __u64 arriving(const struct nat_work *w, __u32 port)
{
	__u32 proto = w->key.w[0] >> 32 & 0xff, ports = w->src_port << 16 | w->dst_port;

	if (w->upper == UPPER_ECHO)
		ports = 0;
	else if (ports)
		ports = w->src_port << 16 | port;
	if (w->v6)
		return tunny_flow_hash_v6(w->src_hi, w->src_lo, w->walk.dst_hi, w->walk.dst_lo, proto, ports);
	return tunny_flow_hash_v4(w->src_lo, w->walk.dst_lo, proto, ports);
}

/* Makes room for a tunnel and translates; from here on nothing may punt the packet. */
static __always_inline int wrap(struct packet *p, struct nat_work *w, __u32 port)
{
	void *ip;

	if (bpf_xdp_adjust_head(p->ctx, -(int)(ETH_BYTES + IPV4_BYTES + UDP_BYTES + VXLAN_BYTES)))
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

/* What is wrong with a plain packet to a public address. Returns GO or a verdict; *scope says what the address takes. */
static __always_inline int read_plain(struct xdp_md *ctx, struct tunny_root *root, struct nat_work *w, __u32 *scope)
{
	__u64 roots = READ_ONCE(root->public_roots);
	int type, why;
	void *ip = front(ctx) + ETH_BYTES;

	if (ip > behind(ctx))
		return PASS;
	type = *(__u16 *)(ip - 2);
	w->at = ETH_BYTES;
	w->frame = frame_bytes(ctx);
	if (type == bpf_htons(ETH_P_IP)) {
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
	} else if (type == bpf_htons(ETH_P_IPV6)) {
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
	if (w->v6) {
		if (w->src_hi >> 54 == 0x3fa || w->dst_hi >> 54 == 0x3fa)
			return DROP_INNER_LINK_LOCAL;
		if ((!w->src_hi && w->src_lo <= 1) || w->src_hi >> 56 == 0xff ||
		    route128(roots >> 32, w->src_hi, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT)
			return DROP_INNER_MARTIAN;
	} else if (martian4_source(w->src_lo) || route32(roots, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT) {
		return DROP_INNER_MARTIAN;
	}
	return why ? PUNT + why : GO;
}

/* A plain packet that parse would pass. PASS: not for a public address. GO: w says to which VM it goes. */
__noinline int tunny_nat_find(struct xdp_md *ctx, struct nat_work *w, struct end *e)
{
	__u32 zero = 0, scope = 0;
	struct tunny_root *root = bpf_map_lookup_elem(&tunny_root, &zero);
	struct tunny_session_record *r;
	int end;

	if (!e || !w || !root)
		return PASS;
	end = read_plain(ctx, root, w, &scope);
	if (end)
		return end;
	outer_key(w);
	w->line = tunny_session_find(&w->key);
	/* A session that moves from one bucket to the other may be overlooked once. */
	if (unlikely(!w->line))
		w->line = tunny_session_find(&w->key);
	r = w->line ? session_line(w->line) : NULL;
	if (!r)
		return scope == TUNNY_SCOPE_BLACKHOLE ? DROP_NAT_UNSOLICITED : PUNT + PUNT_SESSION_NEW;
	w->state = READ_ONCE(r->state);
	w->vni = READ_ONCE(r->inner0) >> 40;
	end = enter_vpc(root, w, e);
	if (end)
		return end;
	end = settled(w, r, w->state, 1);
	if (end)
		return PUNT + end;
	w->port = w->v6 ? w->dst_port : READ_ONCE(r->inner1) >> 16 & 0xffff;
	find_target(root, w, r);
	e->inner_bytes = ETH_BYTES + w->bytes;
	return w->walk.found && !(w->walk.vm.flags & TUNNY_VM_FLAG_GATEWAY) ? GO : DROP_VM_UNKNOWN;
}

/* Locates, meters, wraps and sends it. Negative: sent. */
__noinline int tunny_nat_deliver(struct xdp_md *ctx, struct nat_work *w, const struct end *e)
{
	__u32 zero = 0, slot = bpf_get_smp_processor_id();
	struct packet p = { .ctx = ctx, .slot = slot };
	struct tunny_session_record *r;
	int end, action = 0;

	p.root = bpf_map_lookup_elem(&tunny_root, &zero);
	p.stats = bpf_map_lookup_elem(&tunny_stats, &slot);
	if (!e || !w || !p.root || !p.stats)
		return DROP_TABLE_FAULT;
	p.gateway_mac = w->walk.gateway_mac;
	p.options = READ_ONCE(p.root->options);
	p.vm = w->walk.vm;
	p.vm_found = 1;
	p.inner_bytes = ETH_BYTES + w->bytes;
	p.bytes = w->frame;
	p.to_vni = w->vni;
	p.outer_tos = p.inner_tos = w->tos;
	p.ecn = w->tos & 3;
	p.ttl = w->ttl;
	p.flow_hash = arriving(w, w->port);
	end = locate(&p);
	if (!end)
		end = meter(&p);
	if (end)
		return end;
	if (wrap(&p, w, w->port))
		return DROP_TX_FAILED;
	p.inner_v6 = w->v6;
	end = rewrite(&p);
	if (!end)
		end = emit(&p, &action);
	if (end)
		return end;
	r = session_line(w->line);
	if (r)
		take(w, r, w->state, 1);
	return -action;
}

/* What is not for the gateway's tunnel: is it for a public address? */
static __always_inline int nat_in(struct xdp_md *ctx, struct end *e)
{
	__u32 zero = 0;
	struct tunny_root *root = bpf_map_lookup_elem(&tunny_root, &zero);
	struct nat_work *w;
	int end;

	if (!root || likely(!READ_ONCE(root->public_roots)))
		return PASS;
	w = bpf_map_lookup_elem(&tunny_nat_works, &zero);
	if (!w)
		return PASS;
	end = tunny_nat_find(ctx, w, e);
	return end ? end : tunny_nat_deliver(ctx, w, e);
}

#endif

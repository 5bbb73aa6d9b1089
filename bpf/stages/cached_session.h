/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Sessions in the flow cache: a line of theirs counts only as long as the session's record says what the stages look for there. So nothing of a
 * connection's state lies in the line, and a packet changes the record as it does in the stages. Here is the whole path of what
 * leaves to the Internet and comes from there; cached.h has that between VMs.
 */
#ifndef TUNNY_CACHED_SESSION_H
#define TUNNY_CACHED_SESSION_H

#include "../tables/checksum.h"
#include "../tables/prefetch.h"
#include "nat_rewrite.h"
#include "meter.h"
#include "remember.h"

/* Offsets of the shape. */
#define OUTER_IP ETH_BYTES
#define OUTER_UDP (OUTER_IP + IPV4_BYTES)
#define INNER_ETH (OUTER_UDP + UDP_BYTES + VXLAN_BYTES)
#define INNER_IP (INNER_ETH + ETH_BYTES)
#define INNER_L4 (INNER_IP + IPV4_BYTES)
/* EtherType IPv4, version 4 and a header of 20 bytes, as the first three of the four bytes from the EtherType on. */
#define PLAIN_IPV4 0x450008
/* What must be 0 of the 16 bits with an IPv4 packet's flags and fragment offset, as they are loaded. */
#define FRAGMENT_BITS NET16(IP_MF | IP_OFFSET)

/* With any of these options all packets go through the stages. */
#define NEVER_CACHED (TUNNY_OPT_DSCP_UNIFORM | TUNNY_OPT_UDP4_CHECKSUM | TUNNY_OPT_INLINE | 0xffULL << TUNNY_OPT_SAMPLE_SHIFT)

static __always_inline __u32 load32(const void *at)
{
	return *(const __u32 *)at;
}

static __always_inline __u32 load16(const void *at)
{
	return *(const __u16 *)at;
}

/* Both addresses of an IPv4 header as they lie there, each by a load of its own: one of both would wait for who stored them one by one. */
static __always_inline __u64 addresses_of(const void *ip)
{
	return (__u64)load32(ip + 16) << 32 | load32(ip + 12);
}

/* The second word of a flow's key: what the IPv4 packet at `ip` came in (24 bits), its protocol and its ports. */
static __always_inline __u64 rest_of(const void *ip, __u32 came_in)
{
	__u64 protocol = *(__u8 *)(ip + 9);
	int ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;

	return (__u64)came_in << TUNNY_FLOW_VNI_SHIFT | protocol << TUNNY_FLOW_PROTOCOL_SHIFT | (ports ? load32(ip + IPV4_BYTES) : 0);
}

static __always_inline void one_hop_less(void *ip)
{
	__u32 sum = load16(ip + 10) + 1;

	*(__u8 *)(ip + 8) -= 1;
	/* That is 0x0100 less in the header's sum, 0xffff stands as 0. */
	*(__u16 *)(ip + 10) = sum + (sum >= 0xffff);
}

/* Writes the headers of a packet of the one shape that goes on as a line says. */
static __always_inline void send_as(void *p, const struct tunny_root *root, const struct tunny_flow_line *line, __u64 dmac, __u64 smac,
				    __u32 udp)
{
	__u64 options = root->options;
	__u32 inner_tos = *(__u8 *)(p + INNER_IP + 1), tos = options >> TUNNY_OPT_DSCP_SHIFT << 2 & 0xfc, nc = line->nc, sum;
	__u32 bytes = udp + IPV4_BYTES, src = root->vtep4;

	if (!(options & TUNNY_OPT_ECN_OFF))
		tos |= inner_tos & 3;
	store_macs(p, dmac, smac);
	nc = __builtin_bswap32(nc);
	sum = (0x4500 | tos) + bytes + 0x4000 + (64 << 8 | IPPROTO_UDP) + (src >> 16) + (src & 0xffff) + (nc >> 16) + (nc & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	store_be64(p + OUTER_IP, (__u64)(0x45000000 | tos << 16 | bytes) << 32 | 0x4000);
	store_be32(p + OUTER_IP + 8, (64 << 8 | IPPROTO_UDP) << 16 | (~sum & 0xffff));
	store_be32(p + OUTER_IP + 12, src);
	*(__u32 *)(p + OUTER_IP + 16) = line->nc;
	*(__u64 *)(p + OUTER_UDP) = line->port | TUNNY_FLOW_METERED_VPC | TUNNY_FLOW_METERED_VM | (__u32)__builtin_bswap16(options >> TUNNY_OPT_PORT_SHIFT) << 16 | (__u64)__builtin_bswap16(udp) << 32;
	*(__u64 *)(p + OUTER_UDP + UDP_BYTES) = 8 | (__u64)(line->vni & 0xffffff) << 32;
	*(__u64 *)(p + INNER_ETH) = line->macs;
	*(__u32 *)(p + INNER_ETH + 8) = line->macs_rest;
	one_hop_less(p + INNER_IP);
}

/* Counts a packet that a line has sent on; `counted`: bytes for its VPC and VM. */
static __always_inline void count_hit(struct flow_miss *miss, struct tunny_flow_line *line, struct tunny_stats *stats, __u32 counted,
				      __u32 received, __u32 sent)
{
	miss->hits++;
	line->count += 1ULL << TUNNY_CELL_PACKETS_SHIFT | counted;
	stats->rx++;
	stats->rx_bytes += received;
	stats->flow_hits++;
	count_forwarded(stats, 1, sent);
}

/* The meters of a line, as stage meter has them. meters: FLOW_METERED_*. GO or a drop. */
__noinline int tunny_cached_meter(struct tunny_flow_line *line, __u32 meters, __u32 bytes)
{
	struct tunny_root *root = map_value(&tunny_root, 0);

	if (!line || !root)
		return GO;
	if (meters & TUNNY_FLOW_METERED_VPC &&
	    meter_vpc(root, (__u64)line_tenant(line) << TUNNY_TENANT_ID_SHIFT | TUNNY_TENANT_METERED, bytes, 1))
		return DROP_METER_VPC;
	return meters & TUNNY_FLOW_METERED_VM ? meter_vm(root, line_vm(line), bytes, 1) : GO;
}

/* What a packet that a line sends on can still be dropped for. */
static __always_inline int line_meters(struct tunny_flow_line *line, __u32 bytes)
{
	__u32 meters = line->port & (TUNNY_FLOW_METERED_VPC | TUNNY_FLOW_METERED_VM);

	return meters ? tunny_cached_meter(line, meters, bytes) : GO;
}

/* A line's packet is dropped: what tunny_finish needs to know, which is called where the stack has room. The reason negated. */
static __always_inline int cached_drop(const struct tunny_flow_line *line, struct tunny_stats *stats, int reason, __u32 counted,
				       __u32 received)
{
	struct end *e = map_value(&tunny_ends, 0);
	int in = flow_kind(line) == TUNNY_FLOW_IN;

	if (!e)
		return 0;
	stats->rx++;
	stats->rx_bytes += received;
	__builtin_memset(e, 0, sizeof(*e));
	e->vni = in ? __builtin_bswap32(line->vni) >> 8 : line->rest >> TUNNY_FLOW_VNI_SHIFT;
	e->tenant = in ? 0 : line_tenant(line);
	e->admission = in ? ATTRIBUTED : ACCEPTED;
	e->inner_bytes = counted;
	return -reason;
}

/* Begins to read the record of a session's line, which will be asked for much later. */
static __always_inline void touch_record(const struct tunny_flow_line *line)
{
	struct tunny_session_record *record;

	if (!flow_kind(line))
		return;
	record = session_line(line->addresses >> TUNNY_FLOW_RECORD_SHIFT & TUNNY_SESSION_SLOT_LINE);
	if (record)
		READ_ONCE(record->state);
}

/* How a line's packet leaves. */
struct egress {
	__u64 dmac;
	__u64 smac;
	int action;
};

/* 0: no packet of so many bytes can leave by the line's next hop, as far as is known here. */
static __always_inline int leaves_by(struct frame_ctx *ctx, const struct tunny_flow_line *line, __u32 bytes, struct egress *out)
{
	struct tunny_nexthop *hop = line_at(line->nexthop & TUNNY_ROOT_LINE_MASK);

	if (!hop)
		return 0;
	out->dmac = READ_ONCE(hop->dmac);
	out->smac = READ_ONCE(hop->smac_mtu);
	if (!(out->dmac & TUNNY_NEXTHOP_READY) || bytes > out->smac >> 48)
		return 0;
	out->action = transmit(ctx, hop->ifindex);
	return out->action;
}

/* A packet of a session, as its record gets to know it. */
struct cached_session {
	struct tunny_session_record *record;
	__u64 state;
	struct segment segment;
	__u32 tcp;
};

/* Is the line's record that of the key, and would the stages send this packet on by it? l4: its upper header, of `bytes` bytes with what follows. */
static __always_inline int session_holds(struct frame_ctx *ctx, const struct tunny_flow_line *line, const struct session_key *k, const void *l4,
					 __u32 bytes, struct cached_session *s, int in)
{
	__u32 number = line->addresses >> TUNNY_FLOW_RECORD_SHIFT & TUNNY_SESSION_SLOT_LINE, segment = number >> TUNNY_SEGMENT_SHIFT;
	const struct tunny_session_root *root = map_value(&tunny_session_root, 0);
	__u32 header, flags = 0;

	s->record = session_line(number);
	OPAQUE(segment);
	if (!root || !s->record || segment >= TUNNY_SESSION_SEGMENTS_MAX || READ_ONCE(root->magic) != TUNNY_SESSION_MAGIC ||
	    READ_ONCE(root->kinds[segment]) != TUNNY_SESSION_SEGMENT_V4)
		return 0;
	s->state = READ_ONCE(s->record->state);
	if (!session_is_of(k, s->record, s->state, number))
		return 0;
	if (s->tcp) {
		if (l4 + TCP_BYTES > behind(ctx))
			return 0;
		header = tcp_header(l4, bytes);
		if (!header)
			return 0;
		flags = *(__u8 *)(l4 + 13);
		read_segment(&s->segment, l4, bytes - header);
	}
	return !session_judges(s->record, s->state, s->tcp, flags, (line->addresses & 0xffff) << TUNNY_POLICY_EPOCH_SHIFT, in);
}

/*
 * A packet from a VM of the one shape, whose line says that it leaves to the Internet. Answers as tunny_cached. Once it
 * has been changed or has taken of a meter, what fails ends it, as in the stages.
 */
__noinline int tunny_cached_out(struct frame_ctx *ctx, struct tunny_flow_line *line)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	struct tunny_stats *stats = map_value(&tunny_stats, cpu_number());
	void *p = front(ctx), *ip = p + INNER_IP, *l4 = p + INNER_L4;
	struct session_key key = {};
	struct cached_session s;
	struct egress out;
	__u32 total, port;
	__u64 outer;
	int reason;

	if (!miss || !line || !stats || l4 + UDP_BYTES > behind(ctx))
		return 0;
	total = load_be16(ip + 2);
	s.tcp = *(__u8 *)(ip + 9) == IPPROTO_TCP;
	/* From here on the packet has nothing behind it. */
	if (total + INNER_IP - OUTER_UDP != load_be16(p + OUTER_UDP + 4) || !leaves_by(ctx, line, total, &out))
		return 0;
	key.w[0] = __builtin_bswap32(line->vni & 0xffffff);
	key.w[0] = key.w[0] >> 8 << 40 | (__u64)*(__u8 *)(ip + 9) << 32 | load_be32(ip + 12);
	key.w[1] = (__u64)load_be32(ip + 16) << 32 | load_be32(l4);
	if (!session_holds(ctx, line, &key, l4, total - IPV4_BYTES, &s, 0))
		return 0;
	outer = READ_ONCE(s.record->outer);
	port = outer >> 16 & 0xffff;
	if (outer >> 32 != line->nc || port != line->port)
		return 0;
	reason = line->macs ? tunny_cached_meter(line, line->macs, ETH_BYTES + total) : GO;
	if (!reason && move_head(ctx, INNER_IP - ETH_BYTES))
		reason = DROP_TX_FAILED;
	if (reason)
		return cached_drop(line, stats, reason, ETH_BYTES + total, INNER_IP + total);
	p = front(ctx);
	if (p + ETH_BYTES + IPV4_BYTES > behind(ctx) ||
	    translate4(ctx, ETH_BYTES, s.tcp ? UPPER_TCP : UPPER_UDP, outer >> 32, port, 0))
		return cached_drop(line, stats, DROP_TX_FAILED, ETH_BYTES + total, INNER_IP + total);
	store_macs(p, out.dmac, out.smac);
	one_hop_less(p + ETH_BYTES);
	session_takes(s.record, s.state, s.tcp, &s.segment, session_count(1, total), 0);
	count_hit(miss, line, stats, ETH_BYTES + total, INNER_IP + total, ETH_BYTES + total);
	stats->nat++;
	return out.action;
}

/* The line of a packet from the Internet, whose headers are right. NULL: it has none that is valid. `miss` gets to know what is known of it. */
static __always_inline struct tunny_flow_line *line_in(const struct tunny_root *root, const void *ip, struct flow_miss *miss)
{
	__u64 addresses = addresses_of(ip), rest = (__u64)*(__u8 *)(ip + 9) << TUNNY_FLOW_PROTOCOL_SHIFT | load32(ip + IPV4_BYTES);
	__u64 hash = flow_place(addresses, rest) | 1, versions = READ_ONCE(root->flow_version);
	struct tunny_flow_line *line = flow_pair(cpu_number(), hash);
	__u32 at = line ? flow_probable(line, rest) : 0;

	/* Two flows may have the second word of their keys in common. */
	if (line)
		line += flow_is(line + at, hash, addresses, rest) ? at : at ^ 1;
	miss->place = hash;
	miss->addresses = addresses;
	miss->rest = rest;
	miss->versions = versions;
	if (!line || !flow_is(line, hash, addresses, rest)) {
		flow_wasted(miss);
		return NULL;
	}
	if (flow_kind(line) != TUNNY_FLOW_IN || line->count & TUNNY_FLOW_SPILL)
		return NULL;
	versions += flow_versions(root, __builtin_bswap32(line->vni) >> 8, __builtin_bswap32(line->sender));
	return line->versions << 16 >> 16 == versions ? line : NULL;
}

/* A plain packet, whose line says to which VM it goes. Answers as tunny_cached. */
__noinline int tunny_cached_in(struct frame_ctx *ctx)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_stats *stats = map_value(&tunny_stats, cpu_number());
	void *p = front(ctx), *ip = p + ETH_BYTES, *l4 = ip + IPV4_BYTES;
	struct tunny_flow_line *line;
	struct session_key key = {};
	struct cached_session s;
	struct egress out;
	__u32 total, bytes, ports;
	__u64 inner;
	int reason;

	if (!miss || !root || !stats || l4 + UDP_BYTES > behind(ctx))
		return 0;
	bytes = behind(ctx) - p;
	total = load_be16(ip + 2);
	s.tcp = *(__u8 *)(ip + 9) == IPPROTO_TCP;
	if ((load32(ip - 2) & 0xffffff) ^ PLAIN_IPV4 || load16(ip + 6) & FRAGMENT_BITS || total + ETH_BYTES != bytes ||
	    (!s.tcp && *(__u8 *)(ip + 9) != IPPROTO_UDP) || *(__u8 *)(ip + 8) <= 1 ||
	    !ipv4_checks(ip))
		return 0;
	line = line_in(root, ip, miss);
	if (!line || !leaves_by(ctx, line, total + INNER_IP - ETH_BYTES, &out))
		return 0;
	ports = load_be32(l4);
	key.outer = 1;
	key.w[0] = (__u64)*(__u8 *)(ip + 9) << 32 | load_be32(ip + 16);
	key.w[1] = (__u64)load_be32(ip + 12) << 32 | ports << 16 | ports >> 16;
	if (!session_holds(ctx, line, &key, l4, total - IPV4_BYTES, &s, 1))
		return 0;
	inner = READ_ONCE(s.record->inner0);
	ports = READ_ONCE(s.record->inner1) >> 16 & 0xffff;
	if ((__u32)inner != __builtin_bswap32(line->sender) || inner >> 40 != __builtin_bswap32(line->vni) >> 8 ||
	    ports != line->versions >> TUNNY_FLOW_TENANT_SHIFT || move_head(ctx, ETH_BYTES - INNER_IP))
		return 0;
	reason = line->port & TUNNY_FLOW_METERED_VM ? tunny_cached_meter(line, TUNNY_FLOW_METERED_VM, ETH_BYTES + total) : GO;
	if (unlikely(reason)) {
		move_head(ctx, INNER_IP - ETH_BYTES);
		return cached_drop(line, stats, reason, ETH_BYTES + total, bytes);
	}
	p = front(ctx);
	if (p + INNER_L4 > behind(ctx) || translate4(ctx, INNER_IP, s.tcp ? UPPER_TCP : UPPER_UDP, inner, ports, 1))
		return cached_drop(line, stats, DROP_TX_FAILED, ETH_BYTES + total, bytes);
	*(__u16 *)(p + OUTER_IP - 2) = NET16(ETH_P_IP);
	*(__u16 *)(p + INNER_IP - 2) = NET16(ETH_P_IP);
	send_as(p, root, line, out.dmac, out.smac, total + INNER_IP - OUTER_UDP);
	session_takes(s.record, s.state, s.tcp, &s.segment, session_count(1, total), 1);
	count_hit(miss, line, stats, ETH_BYTES + total, bytes, INNER_IP + total);
	stats->nat++;
	return out.action;
}

#endif

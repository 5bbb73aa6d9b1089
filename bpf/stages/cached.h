/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The flow cache in front of the stages: sends a packet on as the stages did with the one of its flow before, as long as nothing changed that
 * they look at. It knows one shape alone: IPv4 in VXLAN in IPv4, no options, no fragment, one buffer; and what cached_session.h and
 * cached_line.h add. Whatever
 * differs goes through the stages, which say what is wrong with it. docs/design/flow-cache.md
 *
 * It is straight: 64-byte lines hold what is written as it is written, and a CPU that has it in few instructions begins with the next packet
 * while this one's line is on its way. So it reads, checks and writes headers by itself, side by side with framing/vxlan.h, stages/parse.h and
 * stages/rewrite.h; the differential tests hold them against each other.
 */
#ifndef TUNNY_CACHED_H
#define TUNNY_CACHED_H

#include "cached_line.h"

/* Is it a packet of the one shape, whose headers are right? */
static __always_inline int plain_shape(const struct tunny_root *root, const void *p, __u32 bytes)
{
	__u32 port = root->options >> TUNNY_OPT_PORT_SHIFT & 0xffff;
	__u32 total = load_be16(p + OUTER_IP + 2), udp = load_be16(p + OUTER_UDP + 4), inner = load_be16(p + INNER_IP + 2);
	__u32 odd;

	odd = (load32(p + OUTER_IP - 2) & 0xffffff) ^ PLAIN_IPV4;
	odd |= (load32(p + INNER_IP - 2) & 0xffffff) ^ PLAIN_IPV4;
	odd |= (load16(p + OUTER_IP + 6) | load16(p + INNER_IP + 6)) & FRAGMENT_BITS;
	odd |= *(__u8 *)(p + OUTER_IP + 9) ^ IPPROTO_UDP;
	odd |= load_be16(p + OUTER_UDP + 2) ^ port;
	odd |= ~*(__u8 *)(p + OUTER_UDP + UDP_BYTES) & 8;
	odd |= (*(__u8 *)(p + INNER_ETH) | *(__u8 *)(p + INNER_ETH + 6)) & 1;
	/* A congestion mark outside may be for the packet inside. */
	odd |= *(__u8 *)(p + OUTER_IP + 1) & 3;
	/* What stands for customers' ports is no NC. */
	odd |= *(__u8 *)(p + OUTER_IP + 12) >= TUNNY_FLOW_EDGE >> 24;
	if (odd || total + ETH_BYTES > bytes || udp + IPV4_BYTES > total || inner + INNER_IP - OUTER_UDP > udp || inner < IPV4_BYTES + 8)
		return 0;
	return ipv4_checks(p + OUTER_IP) && ipv4_checks(p + INNER_IP) && *(__u8 *)(p + INNER_IP + 8) > 1;
}

/* Is the outer UDP checksum right, if there is one? */
static __always_inline int udp_checks(struct frame_ctx *ctx, const void *p)
{
	__u32 udp = load_be16(p + OUTER_UDP + 4);
	__u64 pseudo = (__u64)load32(p + OUTER_IP + 12) + load32(p + OUTER_IP + 16);

	return !load16(p + OUTER_UDP + 6) ||
	       tunny_sum(ctx, OUTER_UDP, udp, pseudo + __builtin_bswap16(udp) + NET16(IPPROTO_UDP)) == 0xffff;
}

/* Is a packet between VMs, whose upper header is at l4, one of a session that its line names? */
static __always_inline int pair_holds(struct frame_ctx *ctx, const void *l4, const struct tunny_flow_line *line, __u32 vni, __u32 to_vni,
				      struct cached_session *s)
{
	__u32 src = load_be32(l4 - 8), dst = load_be32(l4 - 4), ports, bytes;
	struct session_key key = {};
	/* Which end stands as the VM in the key: filter.h. Lines of two equal addresses are not written. */
	int in = src > dst;

	s->tcp = *(__u8 *)(l4 + 9 - IPV4_BYTES) == IPPROTO_TCP;
	bytes = load_be16(l4 + 2 - IPV4_BYTES) - IPV4_BYTES;
	ports = load_be32(l4);
	key.outer = 2 | (in ? vni : to_vni) << 8;
	key.w[0] = (__u64)(in ? to_vni : vni) << 40 | (__u64)*(__u8 *)(l4 + 9 - IPV4_BYTES) << 32 | (in ? dst : src);
	key.w[1] = (__u64)(in ? src : dst) << 32 | (in ? ports << 16 | ports >> 16 : ports);
	return session_holds(ctx, line, &key, l4, bytes, s, in);
}

/*
 * Sends a packet on as its flow's line says: its action. 0: it goes to the stages; then what the cache needs to know of it stands in
 * tunny_flow_misses. Negative: it is dropped for that reason. PASS: it is not for the tunnel.
 */
__noinline int tunny_cached(struct frame_ctx *ctx)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u32 cpu = cpu_number(), at, vni, src, dst, udp, bytes, to_vni, kind;
	struct tunny_stats *stats = map_value(&tunny_stats, cpu);
	void *p = front(ctx);
	struct tunny_flow_line *line, *other;
	struct cached_session s;
	struct egress out;
	__u64 addresses, rest, versions, all, hash;
	int reason;

	if (!miss || !root || !stats || cpu >= tunny_flow.cpus || READ_ONCE(root->magic) != TUNNY_ROOT_MAGIC ||
	    root->options & NEVER_CACHED)
		return 0;
	if (p + OUTER_UDP + UDP_BYTES > behind(ctx))
		return 0;
	if (load_be32(p + OUTER_IP + 16) != root->vtep4)
		return READ_ONCE(root->public_roots) ? PASS : 0;
	if (p + INNER_L4 + 8 > behind(ctx))
		return 0;
	/*
	 * Both places are read before anything is checked: they come from memory while the headers are looked at. What is found counts only once
	 * the packet has turned out to be of the shape.
	 */
	vni = load_be32(p + OUTER_UDP + UDP_BYTES + 4) >> 8;
	addresses = addresses_of(p + INNER_IP);
	rest = rest_of(p + INNER_IP, vni);
	hash = flow_place(addresses, rest) | 1;
	line = flow_pair(cpu, hash);
	if (!line)
		return 0;
	at = flow_probable(line, rest);
	other = line + (at ^ 1);
	line += at;
	touch_record(line);
	src = load_be32(p + INNER_IP + 12);
	dst = load_be32(p + INNER_IP + 16);
	versions = READ_ONCE(root->flow_version) + flow_versions(root, vni, dst);
	bytes = behind(ctx) - p;
	/* Beyond 1,024 bytes there may be a second buffer. */
	if (bytes > 1024 && buffers_bytes(ctx) != bytes)
		return 0;
	if (!plain_shape(root, p, bytes) || !udp_checks(ctx, p))
		return 0;
	p = front(ctx);
	if (p + INNER_L4 + 8 > behind(ctx))
		return 0;
	udp = load_be16(p + OUTER_UDP + 4);
	/* What is behind the frame goes: that takes a call. */
	if (udp + OUTER_UDP != bytes)
		return 0;
	/* Two flows may have the second word of their keys in common. */
	if (!flow_is(line, hash, addresses, rest)) {
		line = other;
		if (!flow_is(line, hash, addresses, rest)) {
			flow_wasted(miss);
			goto miss;
		}
	}
	kind = flow_kind(line);
	to_vni = __builtin_bswap32(line->vni) >> 8;
	all = versions;
	if (to_vni != vni)
		all += flow_versions(root, to_vni, dst);
	if (kind == TUNNY_FLOW_PAIR)
		all += flow_version_v4(root, vni, src);
	if (line->versions << 16 >> 16 != all || line->sender != load32(p + OUTER_IP + 12) || line->count & TUNNY_FLOW_SPILL)
		goto miss;
	if (kind >= TUNNY_FLOW_OUT || unlikely(flow_to_line(line))) {
		out.action = kind == TUNNY_FLOW_OUT ? tunny_cached_out(ctx, line) : kind ? 0 : tunny_cached_line(ctx, line);
		if (out.action)
			return out.action;
		goto miss;
	}
	if (!leaves_by(ctx, line, udp + IPV4_BYTES, &out) || (kind && !pair_holds(ctx, p + INNER_L4, line, vni, to_vni, &s)))
		goto miss;
	if (kind)
		session_takes(s.record, s.state, s.tcp, &s.segment, session_count(1, load_be16(p + INNER_IP + 2)), src > dst);
	reason = line_meters(line, udp - UDP_BYTES - VXLAN_BYTES);
	if (reason)
		return cached_drop(line, stats, reason, udp - UDP_BYTES - VXLAN_BYTES, bytes);
	send_as(p, root, line, out.dmac, out.smac, udp);
	count_hit(miss, line, stats, udp - UDP_BYTES - VXLAN_BYTES, bytes, bytes);
	return out.action;
miss:
	flow_missed(miss, hash, addresses, rest, versions);
	return 0;
}

#endif

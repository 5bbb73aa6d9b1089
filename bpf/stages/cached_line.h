/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Customers in the flow cache: what a circuit's frame becomes in the cloud, and what leaves by a circuit. The words of the edge's ports are read
 * at each packet; what the tags stand for is a part of the line, for a change of a circuit raises the versions of its VPC.
 * docs/design/flow-cache.md
 */
#ifndef TUNNY_CACHED_LINE_H
#define TUNNY_CACHED_LINE_H

#include "cached_session.h"

/*
 * A packet from a VM of the one shape, whose line says that it leaves by a circuit. Answers as tunny_cached. Once it has been changed or has taken
 * of a meter, what fails ends it, as in the stages.
 */
__noinline int tunny_cached_line(struct frame_ctx *ctx, struct tunny_flow_line *line)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_stats *stats = map_value(&tunny_stats, cpu_number());
	__u32 circuit, number, tags, bytes, inner, tpids;
	void *p = front(ctx);
	int action, reason;
	__u64 port;

	if (!miss || !root || !stats || !line || p + INNER_L4 > behind(ctx))
		return 0;
	circuit = line->nc;
	number = circuit >> TUNNY_CIRCUIT_PORT_SHIFT & (EDGE_PORTS - 1);
	port = READ_ONCE(root->edge_ports[number]);
	tags = port >> TUNNY_EDGE_PORT_TAGS_SHIFT & 3;
	if ((port & (TUNNY_EDGE_PORT_VALID | TUNNY_EDGE_PORT_ELSEWHERE | TUNNY_EDGE_PORT_TUN)) != TUNNY_EDGE_PORT_VALID || tags > 2)
		return 0;
	inner = load_be16(p + OUTER_UDP + 4) - UDP_BYTES - VXLAN_BYTES;
	/* A link's MTU leaves room for one tag. */
	if (inner - ETH_BYTES + (tags > 1 ? TAG_BYTES : 0) > (port >> TUNNY_EDGE_PORT_MTU_SHIFT & 0xffff))
		return 0;
	action = transmit(ctx, port);
	if (!action)
		return 0;
	bytes = inner + INNER_ETH;
	reason = line_meters(line, inner);
	if (reason)
		return cached_drop(line, stats, reason, inner, bytes);
	one_hop_less(p + INNER_IP);
	if (move_head(ctx, INNER_ETH - tags * TAG_BYTES))
		return cached_drop(line, stats, DROP_TX_FAILED, inner, bytes);
	p = front(ctx);
	if (p + ETH_BYTES + 2 * TAG_BYTES > behind(ctx))
		return cached_drop(line, stats, DROP_TX_FAILED, inner, bytes);
	*(__u64 *)p = line->macs;
	*(__u32 *)(p + 8) = line->macs_rest;
	tpids = READ_ONCE(root->edge_tpids[number]);
	if (tags) {
		store_be16(p + MAC_BYTES, tpids);
		store_be16(p + MAC_BYTES + 2, circuit >> TUNNY_CIRCUIT_OUTER_SHIFT & VID_MASK);
	}
	if (tags > 1) {
		store_be16(p + MAC_BYTES + TAG_BYTES, tpids >> 16);
		store_be16(p + MAC_BYTES + TAG_BYTES + 2, circuit & VID_MASK);
	}
	count_hit(miss, line, stats, inner, bytes, inner + tags * TAG_BYTES);
	return action;
}

/* The VLAN ids of a frame whose tags are those of its port, as they stand in a line. Negative: they are not. */
static __always_inline int plain_tags(const void *p, __u32 tags, __u32 tpids)
{
	__u32 outer, inner;

	if (!tags)
		return 0;
	outer = load_be16(p + MAC_BYTES + 2) & VID_MASK;
	if (load_be16(p + MAC_BYTES) != (tpids & 0xffff) || !outer)
		return -1;
	if (tags < 2)
		return outer << TUNNY_CIRCUIT_OUTER_SHIFT;
	inner = load_be16(p + MAC_BYTES + TAG_BYTES + 2) & VID_MASK;
	if (load_be16(p + MAC_BYTES + TAG_BYTES) != tpids >> 16 || !inner)
		return -1;
	return outer << TUNNY_CIRCUIT_OUTER_SHIFT | inner;
}

/* Is it an IPv4 packet, at `ip`, that fills so many bytes behind an Ethernet header or less, and whose header is right? */
static __always_inline int plain_inner(const void *ip, __u32 bytes)
{
	__u32 total = load_be16(ip + 2);

	if ((load32(ip - 2) & 0xffffff) ^ PLAIN_IPV4 || load16(ip + 6) & FRAGMENT_BITS || total > bytes || total < IPV4_BYTES + 8)
		return 0;
	return ipv4_checks(ip) && *(__u8 *)(ip + 8) > 1;
}

/* A customer's frame, which came by the edge port of this number. Answers as tunny_cached. */
__noinline int tunny_cached_edge(struct frame_ctx *ctx, __u32 number)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u32 cpu = cpu_number(), tags, bytes, inner, vni, to_vni, dst, edge, shift;
	struct tunny_stats *stats = map_value(&tunny_stats, cpu);
	void *p = front(ctx), *ip;
	struct tunny_flow_line *line, *other;
	__u64 port, addresses, rest, versions, hash, mac;
	struct egress out;
	int vids, reason;
	struct end *e;

	number &= EDGE_PORTS - 1;
	if (!miss || !root || !stats || cpu >= tunny_flow.cpus || READ_ONCE(root->magic) != TUNNY_ROOT_MAGIC ||
	    root->options & NEVER_CACHED)
		return 0;
	versions = READ_ONCE(root->flow_version);
	asm volatile("" ::: "memory");
	port = READ_ONCE(root->edge_ports[number]);
	tags = port >> TUNNY_EDGE_PORT_TAGS_SHIFT & 3;
	/* As the first two steps of the framing have it; of a frame without room for headers the stages say what it is. */
	if (port & (TUNNY_EDGE_PORT_CHANGES | TUNNY_EDGE_PORT_TUN) || tags > 2 || p + ETH_BYTES + 2 * TAG_BYTES > behind(ctx))
		return 0;
	vids = plain_tags(p, tags, READ_ONCE(root->edge_tpids[number]));
	shift = tags * TAG_BYTES;
	ip = p + ETH_BYTES + shift;
	if (vids < 0 || ip + IPV4_BYTES + 8 > behind(ctx) || (*(__u8 *)p | *(__u8 *)(p + 6)) & 1)
		return 0;
	mac = load_be64(p + 4) & ((1ULL << 48) - 1);
	edge = TUNNY_FLOW_EDGE | number << 24;
	addresses = addresses_of(ip);
	rest = rest_of(ip, vids);
	hash = flow_place(addresses, rest) | 1;
	line = flow_pair(cpu, hash);
	if (!line || !rest)
		return 0;
	inner = flow_probable(line, rest);
	other = line + (inner ^ 1);
	line += inner;
	bytes = behind(ctx) - p;
	/* Beyond 1,024 bytes there may be a second buffer. */
	if (bytes > 1024 && buffers_bytes(ctx) != bytes)
		return 0;
	inner = bytes - shift;
	if (inner > 0xffff || !plain_inner(ip, inner - ETH_BYTES))
		return 0;
	if (!flow_is(line, hash, addresses, rest)) {
		line = other;
		if (!flow_is(line, hash, addresses, rest)) {
			flow_wasted(miss);
			goto miss;
		}
	}
	vni = __builtin_bswap32(line->sender);
	if (flow_kind(line) || flow_to_line(line) || (vni ^ edge) >> 24 || line->count & TUNNY_FLOW_SPILL)
		goto miss;
	vni &= 0xffffff;
	to_vni = __builtin_bswap32(line->vni) >> 8;
	dst = __builtin_bswap32(addresses >> 32);
	port = versions + flow_versions(root, vni, dst);
	if (to_vni != vni)
		port += flow_versions(root, to_vni, dst);
	if (!tunny_circuit_sender(number << TUNNY_CIRCUIT_PORT_SHIFT | vids, mac))
		goto miss;
	if (line->versions << 16 >> 16 != port || !leaves_by(ctx, line, inner + INNER_ETH - ETH_BYTES, &out))
		goto miss;
	reason = line_meters(line, inner);
	if (!reason && move_head(ctx, (int)shift - INNER_ETH))
		reason = DROP_TX_FAILED;
	if (!reason) {
		p = front(ctx);
		if (p + INNER_L4 <= behind(ctx)) {
			*(__u16 *)(p + OUTER_IP - 2) = NET16(ETH_P_IP);
			*(__u16 *)(p + INNER_IP - 2) = NET16(ETH_P_IP);
			send_as(p, root, line, out.dmac, out.smac, inner + UDP_BYTES + VXLAN_BYTES);
			count_hit(miss, line, stats, inner, bytes, inner + INNER_ETH);
			return out.action;
		}
		reason = DROP_TX_FAILED;
	}
	reason = cached_drop(line, stats, reason, inner, bytes);
	e = map_value(&tunny_ends, 0);
	if (e)
		e->vni = vni;
	return reason;
miss:
	miss->edge = edge;
	/* The versions of the VPC follow when its tags have been looked up. */
	flow_missed(miss, hash, addresses, rest, versions);
	return 0;
}

#endif

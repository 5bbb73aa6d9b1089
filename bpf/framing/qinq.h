/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Framing qinq (IEEE 802.1Q, 802.1ad): a customer's frame on an edge port, with two tags, one or none. Port and tags name the VPC. The order
 * of checks is docs/design/packet-qinq.md.
 *
 * The tags are taken off at once, so that the stages find the frame where it begins, as a constant. Who hands it over puts them back: they
 * are kept in struct end.
 */
#ifndef TUNNY_QINQ_H
#define TUNNY_QINQ_H

#include "../connection/packet.h"
#include "../tables/circuit.h"
#include "../tables/flow_cache.h"

#define TAG_BYTES 4
#define MAC_BYTES 12
#define VID_MASK 0xfff

static __always_inline int is_tag(__u16 type)
{
	return type == NET16(ETH_P_8021Q) || type == NET16(ETH_P_8021AD) || type == NET16(ETH_P_QINQ1);
}

/* The tag at `at`, which is to have this EtherType: *vid. GO or a verdict; `missing`: there is none. */
static __always_inline int qinq_tag(struct packet *p, __u32 at, __u32 tpid, int missing, __u32 *vid)
{
	void *tag = front(p->ctx) + at;
	__u16 type;

	if (tag + 2 > behind(p->ctx))
		return short_of(p, at + 2, DROP_OUTER_TRUNCATED);
	type = *(__u16 *)tag;
	if (type != __builtin_bswap16(tpid & 0xffff))
		return is_tag(type) ? DROP_EDGE_TPID : missing;
	/* With the EtherType behind it. */
	if (tag + TAG_BYTES + 2 > behind(p->ctx))
		return short_of(p, at + TAG_BYTES + 2, DROP_OUTER_TRUNCATED);
	*vid = load_be16(tag + 2) & VID_MASK;
	return *vid ? GO : DROP_EDGE_PRIORITY_TAG;
}

/* The VLAN ids of a frame with the tags of its port, as a key. GO or a verdict. */
static __always_inline int qinq_tags(struct packet *p, __u32 number, __u32 tags, __u32 *key)
{
	__u32 tpids = READ_ONCE(p->root->edge_tpids[number & (EDGE_PORTS - 1)]), outer = 0, inner = 0;
	void *data = front(p->ctx);
	int end = GO;

	if (data + ETH_BYTES > behind(p->ctx))
		return short_of(p, ETH_BYTES, DROP_OUTER_TRUNCATED);
	/* 01-80-C2-00-00-00 to -0F: what a link says about itself (IEEE 802.1Q, 8.6.3). */
	if (load_be64(data) >> 20 == 0x0180c200000)
		return PASS;
	if (tags)
		end = qinq_tag(p, MAC_BYTES, tpids, DROP_EDGE_UNTAGGED, &outer);
	/* What was read before that was wrong says whose the frame is. */
	*key = number << TUNNY_CIRCUIT_PORT_SHIFT | outer << TUNNY_CIRCUIT_OUTER_SHIFT;
	if (!end && tags > 1)
		end = qinq_tag(p, MAC_BYTES + TAG_BYTES, tpids >> 16, DROP_EDGE_ONE_TAG, &inner);
	if (end)
		return end;
	*key |= inner;
	data = front(p->ctx) + MAC_BYTES + (tags > 1 ? 2 : tags) * TAG_BYTES;
	if (data + 2 > behind(p->ctx))
		return DROP_OUTER_TRUNCATED;
	if (is_tag(*(__u16 *)data))
		return tags ? DROP_EDGE_MANY_TAGS : DROP_EDGE_TAGGED;
	return GO;
}

#ifndef TUNNY_SKB
/* The frame loses its tags, which `e` keeps. -1 if the driver refuses. */
static __always_inline int qinq_strip(struct frame_ctx *ctx, struct end *e, __u32 tags)
{
	void *data = front(ctx);
	__u64 macs;
	__u32 more;

	if (data + MAC_BYTES + TAG_BYTES > behind(ctx))
		return -1;
	macs = *(__u64 *)data;
	more = *(__u32 *)(data + 8);
	e->tags[0] = *(__u32 *)(data + MAC_BYTES);
	if (tags > 1) {
		if (data + MAC_BYTES + 2 * TAG_BYTES > behind(ctx))
			return -1;
		e->tags[1] = *(__u32 *)(data + MAC_BYTES + TAG_BYTES);
	}
	if (move_head(ctx, tags > 1 ? 2 * TAG_BYTES : TAG_BYTES))
		return -1;
	data = front(ctx);
	if (data + MAC_BYTES > behind(ctx))
		return -1;
	*(__u64 *)data = macs;
	*(__u32 *)(data + 8) = more;
	e->tag_bytes = tags > 1 ? 2 * TAG_BYTES : TAG_BYTES;
	return 0;
}

/* The frame gets the tags back that it came with. -1 if the driver refuses. */
static __always_inline int qinq_restore(struct frame_ctx *ctx, const struct end *e)
{
	int two = e->tag_bytes > TAG_BYTES;
	void *data;
	__u64 macs;
	__u32 more;

	if (move_head(ctx, two ? -2 * TAG_BYTES : -TAG_BYTES))
		return -1;
	data = front(ctx);
	/* There may be no more in the first buffer than what it came with: one tag, and the EtherType behind it. */
	if (data + MAC_BYTES + TAG_BYTES > behind(ctx))
		return -1;
	if (two) {
		if (data + MAC_BYTES + 2 * TAG_BYTES > behind(ctx))
			return -1;
		macs = *(__u64 *)(data + 2 * TAG_BYTES);
		more = *(__u32 *)(data + 2 * TAG_BYTES + 8);
		*(__u32 *)(data + MAC_BYTES + TAG_BYTES) = e->tags[1];
	} else {
		macs = *(__u64 *)(data + TAG_BYTES);
		more = *(__u32 *)(data + TAG_BYTES + 8);
	}
	*(__u64 *)data = macs;
	*(__u32 *)(data + 8) = more;
	*(__u32 *)(data + MAC_BYTES) = e->tags[0];
	return 0;
}
#endif

/*
 * Hands over a frame without its tags that is for the routing daemon which has this address: ARP, BGP (TCP 179), BFD (UDP 3784, 3785, 4784), and
 * what may be, if it does not stand in the first buffer. Else GO. Global, verified once.
 */
__noinline int tunny_control(struct frame_ctx *ctx, __u32 gateway)
{
	void *data = front(ctx), *ip = data + ETH_BYTES;
	__u32 from, to;
	__u16 type;

	if (ip + IPV4_BYTES + UDP_BYTES > behind(ctx))
		return buffers_bytes(ctx) < ETH_BYTES + IPV4_BYTES + UDP_BYTES ? GO : PUNT + PUNT_NONLINEAR_HEADERS;
	type = *(__u16 *)(data + MAC_BYTES);
	if (type == NET16(ETH_P_ARP))
		return load_be32(ip + 24) == gateway ? PUNT + PUNT_EDGE_CONTROL : GO;
	if (type != NET16(ETH_P_IP) || *(__u8 *)ip != 0x45 || load_be32(ip + 16) != gateway ||
	    load_be16(ip + 6) & (IP_MF | IP_OFFSET))
		return GO;
	from = load_be16(ip + IPV4_BYTES);
	to = load_be16(ip + IPV4_BYTES + 2);
	if (*(__u8 *)(ip + 9) == IPPROTO_TCP)
		return from == 179 || to == 179 ? PUNT + PUNT_EDGE_CONTROL : GO;
	return *(__u8 *)(ip + 9) == IPPROTO_UDP && (to == 3784 || to == 3785 || to == 4784) ? PUNT + PUNT_EDGE_CONTROL : GO;
}

#ifndef TUNNY_SKB
/* What flow caches hold the frame's flow by, once its VPC is known. Who notes the flow asks once more what the tags stand for. */
static __always_inline void qinq_versions(const struct tunny_root *root, __u32 vni, __u64 found)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);

	if (!miss || !miss->place)
		return;
	miss->circuit = found;
	miss->versions += flow_versions(root, vni, __builtin_bswap32(miss->addresses >> 32));
}

/* A drop for which no VPC can be charged is counted for the customer, if there is one with the frame's outer tag. */
static __always_inline void of_customer(struct end *e, __u32 key)
{
	__u32 customer = key >> TUNNY_CIRCUIT_OUTER_SHIFT & VID_MASK;

	if (!customer || tunny_circuit_vpc(key | TUNNY_CIRCUIT_CUSTOMER) != DROP_EDGE_OVERLAY_UNKNOWN)
		return;
	e->vni = TUNNY_DROP_CUSTOMER | key >> TUNNY_CIRCUIT_PORT_SHIFT << TUNNY_DROP_CUSTOMER_PORT_SHIFT | customer;
	e->admission = OF_CUSTOMER;
}

/*
 * Takes the tags off: fills the VPC, the gateway's address if a routing daemon is there, and the frame behind them, which begins where the
 * packet does. GO or a verdict.
 */
static __always_inline int qinq_decapsulate(struct packet *p, struct end *e, __u32 number, __u32 *gateway)
{
	__u64 port = READ_ONCE(p->root->edge_ports[number & (EDGE_PORTS - 1)]), found;
	__u32 tags = port >> TUNNY_EDGE_PORT_TAGS_SHIFT & 3, key = 0;
	int end = port & TUNNY_EDGE_PORT_CHANGES ? PASS : qinq_tags(p, number, tags, &key);
	void *data;

	if (end) {
		if (end < DROP_REASONS)
			of_customer(e, key);
		return end;
	}
	found = tunny_circuit_vpc(key);
	if (found < DROP_REASONS) {
		of_customer(e, key);
		return found;
	}
	found -= DROP_REASONS;
	p->vni = found & 0xffffff;
	*gateway = found >> TUNNY_CIRCUIT_GATEWAY_SHIFT;
	if (tunny_flow.chunks)
		qinq_versions(p->root, p->vni, found + DROP_REASONS);
	/* Nothing is around the packet that could say anything else than it says itself. */
	p->outer_tos = 0;
	p->sender_lo = 0;
	/* All of it, in however many buffers. */
	frame_holds(p, 0xffffffff);
	if (tags && qinq_strip(p->ctx, e, tags))
		return DROP_TX_FAILED;
	p->inner_at = 0;
	p->inner_bytes = p->bytes - tags * TAG_BYTES;
	if (p->inner_bytes > 0xffff)
		p->inner_bytes = 0xffff;
	p->bytes = p->inner_bytes;
	e->edge = 1;
	e->vni = p->vni;
	e->inner_at = e->tag_bytes;
	e->inner_bytes = p->inner_bytes;
	data = front(p->ctx);
	if (data + ETH_BYTES > behind(p->ctx))
		return DROP_INNER_TRUNCATED;
	return tunny_circuit_sender(key, load_be64(data + 4) & ((1ULL << 48) - 1)) ? GO : DROP_EDGE_MAC;
}
#endif

/*
 * What a line may send for its VPC: the VPC's route to the source has scope line, too. GO or the drop. Global, verified once.
 */
__noinline int tunny_line_source(struct frame_ctx *ctx, __u64 roots, __u32 v6)
{
	void *ip = front(ctx) + ETH_BYTES;
	__u32 value;

	if (v6) {
		if (ip + IPV6_BYTES > behind(ctx))
			return DROP_EDGE_SOURCE;
		value = route128(roots >> 32, load_be64(ip + 8), load_be64(ip + 16));
	} else {
		if (ip + IPV4_BYTES > behind(ctx))
			return DROP_EDGE_SOURCE;
		value = route32(roots, load_be32(ip + 12));
	}
	return value >> TUNNY_VALUE_SCOPE_SHIFT == TUNNY_SCOPE_LINE ? GO : DROP_EDGE_SOURCE;
}

/*
 * The frame at w->at goes to a CE with the tags of its circuit: what is behind it and in front of it goes. Returns its new length, 0 if the
 * driver refuses.
 */
static __always_inline __u32 qinq_encapsulate(struct frame_ctx *ctx, const struct flow *w, __u64 ce, __u64 gateway_mac)
{
	__u32 inner = w->at - ETH_BYTES, end = inner + w->inner_bytes, tags = w->tags & 3, bytes = tags * TAG_BYTES;
	__u32 number = w->circuit >> TUNNY_CIRCUIT_PORT_SHIFT & (EDGE_PORTS - 1);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	void *data;
	__u32 tpids;

	if (!root || (w->frame > end && move_tail(ctx, (int)(end - w->frame))))
		return 0;
#ifdef TUNNY_SKB
	/* tunny_circuit_of leaves lines with tags to the software path. */
	if (bytes || (inner && lay_bare(ctx, inner, w->v6)))
		return 0;
#else
	if (inner != bytes && move_head(ctx, (int)inner - (int)bytes))
		return 0;
#endif
	data = front(ctx);
	if (data + ETH_BYTES + 2 * TAG_BYTES > behind(ctx))
		return 0;
	store_macs(data, ce, gateway_mac);
	tpids = READ_ONCE(root->edge_tpids[number]);
	if (tags) {
		store_be16(data + MAC_BYTES, tpids);
		store_be16(data + MAC_BYTES + 2, w->circuit >> TUNNY_CIRCUIT_OUTER_SHIFT & VID_MASK);
	}
	if (tags > 1) {
		store_be16(data + MAC_BYTES + TAG_BYTES, tpids >> 16);
		store_be16(data + MAC_BYTES + TAG_BYTES + 2, w->circuit & VID_MASK);
	}
	return w->inner_bytes + bytes;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The flow cache in front of the stages: sends a packet on as the stages did with the one of its flow before, as long as nothing changed that
 * they look at. It knows one shape alone: IPv4 in VXLAN in IPv4, no options, no fragment, one buffer. Whatever differs
 * goes through the stages, which say what is wrong with it. docs/design/flow-cache.md
 *
 * It is straight: 64-byte lines hold what is written as it is written, and a CPU that has it in few instructions begins with the next packet
 * while this one's line is on its way. So it reads, checks and writes headers by itself, side by side with framing/vxlan.h, stages/parse.h and
 * stages/rewrite.h; the differential tests hold them against each other.
 */
#ifndef TUNNY_CACHED_H
#define TUNNY_CACHED_H

#include "../packet.h"
#include "../tables/checksum.h"
#include "../tables/flow_cache.h"
#include "../tables/prefetch.h"
#include "../tables/vm.h"
#include "emit.h"

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

/* What is known of a packet that is left to the stages. */
struct flow_miss {
	__u64 place;		/* hash of its key, 0: it is nothing for the cache */
	__u64 rest;		/* second word of its key */
	__u64 versions;		/* read before any table */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_miss);
} tunny_flow_misses SEC(".maps");

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
	odd |= load_be32(p + OUTER_IP + 16) ^ root->vtep4;
	odd |= load_be16(p + OUTER_UDP + 2) ^ port;
	odd |= ~*(__u8 *)(p + OUTER_UDP + UDP_BYTES) & 8;
	odd |= (*(__u8 *)(p + INNER_ETH) | *(__u8 *)(p + INNER_ETH + 6)) & 1;
	/* A congestion mark outside may be for the packet inside. */
	odd |= *(__u8 *)(p + OUTER_IP + 1) & 3;
	if (odd || total + ETH_BYTES > bytes || udp + IPV4_BYTES > total || inner + INNER_IP - OUTER_UDP > udp || inner < IPV4_BYTES + 8)
		return 0;
	return ipv4_checks(p + OUTER_IP) && ipv4_checks(p + INNER_IP) && *(__u8 *)(p + INNER_IP + 8) > 1;
}

/* Is the outer UDP checksum right, if there is one? */
static __always_inline int udp_checks(struct xdp_md *ctx, const void *p)
{
	__u32 udp = load_be16(p + OUTER_UDP + 4);
	__u64 pseudo = (__u64)load32(p + OUTER_IP + 12) + load32(p + OUTER_IP + 16);

	return !load16(p + OUTER_UDP + 6) ||
	       tunny_sum(ctx, OUTER_UDP, udp, pseudo + __builtin_bswap16(udp) + NET16(IPPROTO_UDP)) == 0xffff;
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
	*(__u16 *)(p + OUTER_UDP) = line->port;
	*(__u16 *)(p + OUTER_UDP + 6) = 0;
	*(__u64 *)(p + OUTER_UDP + UDP_BYTES) = 8 | (__u64)(line->vni & 0xffffff) << 32;
	*(__u64 *)(p + INNER_ETH) = line->macs;
	*(__u32 *)(p + INNER_ETH + 8) = line->macs_rest;
	*(__u8 *)(p + INNER_IP + 8) -= 1;
	/* One hop less is 0x0100 less in the header's sum, 0xffff stands as 0. */
	sum = load16(p + INNER_IP + 10) + 1;
	*(__u16 *)(p + INNER_IP + 10) = sum + (sum >= 0xffff);
}

/*
 * Sends a packet on as its flow's line says. 0: it goes to the stages; then what the cache needs to know of it stands in tunny_flow_misses.
 */
__noinline int tunny_cached(struct xdp_md *ctx)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u32 cpu = cpu_number(), vni, dst, udp, bytes, to_vni;
	struct tunny_stats *stats = map_value(&tunny_stats, cpu);
	void *p = front(ctx);
	struct tunny_nexthop *hop;
	struct tunny_flow_line *line;
	__u64 addresses, rest, versions, all, hash, dmac, smac;
	int action;

	if (!miss || !root || !stats || cpu >= tunny_flow.cpus)
		return 0;
	miss->place = 0;
	if (p + INNER_L4 + 8 > behind(ctx))
		return 0;
	bytes = behind(ctx) - p;
	/* Beyond 1,024 bytes there may be a second buffer. */
	if (bytes > 1024 && buffers_bytes(ctx) != bytes)
		return 0;
	if (root->options & (TUNNY_OPT_DSCP_UNIFORM | TUNNY_OPT_UDP4_CHECKSUM | TUNNY_OPT_INLINE | 0xffULL << TUNNY_OPT_SAMPLE_SHIFT) ||
	    READ_ONCE(root->magic) != TUNNY_ROOT_MAGIC || !plain_shape(root, p, bytes) || !udp_checks(ctx, p))
		return 0;
	p = front(ctx);
	if (p + INNER_L4 + 8 > behind(ctx))
		return 0;
	udp = load_be16(p + OUTER_UDP + 4);
	/* What is behind the frame goes: that takes a call. */
	if (udp + OUTER_UDP != bytes)
		return 0;
	vni = load_be32(p + OUTER_UDP + UDP_BYTES + 4) >> 8;
	dst = load_be32(p + INNER_IP + 16);
	addresses = addresses_of(p + INNER_IP);
	rest = *(__u8 *)(p + INNER_IP + 9);
	rest = (__u64)vni << TUNNY_FLOW_VNI_SHIFT | rest << TUNNY_FLOW_PROTOCOL_SHIFT |
	       (rest == IPPROTO_TCP || rest == IPPROTO_UDP || rest == IPPROTO_SCTP ? load_be32(p + INNER_L4) : 0);
	hash = flow_place(addresses, rest) | 1;
	line = flow_line(cpu, hash, hash >> 1 & 1);
	if (!line)
		return 0;
	versions = READ_ONCE(root->flow_version) + flow_versions(root, vni, dst);
	if (!flow_is(line, addresses, rest)) {
		line = flow_line(cpu, hash, ~hash >> 1 & 1);
		if (!line || !flow_is(line, addresses, rest))
			goto miss;
	}
	to_vni = __builtin_bswap32(line->vni) >> 8;
	all = versions;
	if (to_vni != vni)
		all += flow_versions(root, to_vni, dst);
	if ((line->versions << 16 >> 16) != all || line->sender != load32(p + OUTER_IP + 12) || line->count & TUNNY_FLOW_SPILL)
		goto miss;
	hop = line_at(line->nexthop & TUNNY_ROOT_LINE_MASK);
	if (!hop)
		goto miss;
	dmac = READ_ONCE(hop->dmac);
	smac = READ_ONCE(hop->smac_mtu);
	if (!(dmac & TUNNY_NEXTHOP_READY) || udp + IPV4_BYTES > smac >> 48)
		goto miss;
	action = transmit(ctx, hop->ifindex);
	if (!action)
		goto miss;
	send_as(p, root, line, dmac, smac, udp);
	line->count += 1ULL << TUNNY_CELL_PACKETS_SHIFT | (udp - UDP_BYTES - VXLAN_BYTES);
	stats->rx++;
	stats->rx_bytes += bytes;
	stats->flow_hits++;
	count_forwarded(stats, bytes);
	return action;
miss:
	miss->place = hash;
	miss->rest = rest;
	miss->versions = versions;
	return 0;
}

/* Whether the stages looked at nothing for this packet but what the versions stand for. */
static __always_inline int plain_flow(const struct packet *p)
{
	return !((p->policy | p->to_policy) & TUNNY_POLICY_FILTER) && !(p->tenant_key & TUNNY_TENANT_METERED) &&
	       !(p->vm.flags & TUNNY_VM_FLAG_METERED) && !p->nat && !p->nc_v6 && p->hops <= 1;
}

/*
 * Adds what a line has sent on to the counts of its VPC and VM. The program of the line's own CPU calls it, and on that CPU tunny_gather, into
 * which a packet may break before Linux 6.11: so each step is one instruction, and what turns out to be of another line by then goes back.
 */
__noinline int tunny_flow_tell(struct tunny_flow_line *line, __u32 slot)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	__u32 tenant, vm;
	__u64 addresses, rest, count, before, *cells;

	if (!line || !root || !READ_ONCE(line->count))
		return 0;
	addresses = READ_ONCE(line->addresses);
	rest = READ_ONCE(line->rest);
	tenant = READ_ONCE(line->versions) >> TUNNY_FLOW_TENANT_SHIFT | READ_ONCE(line->nexthop) >> TUNNY_FLOW_TENANT_HIGH_SHIFT << 16;
	vm = READ_ONCE(line->vni) >> TUNNY_FLOW_VM_SHIFT | (__u32)READ_ONCE(line->vm_high) << 8;
	/* 6.1 does not see that they are small: the masks of who looks them up must stay. */
	OPAQUE(tenant);
	OPAQUE(vm);
	count = __sync_lock_test_and_set(&line->count, 0);
	if (unlikely(READ_ONCE(line->addresses) != addresses || READ_ONCE(line->rest) != rest)) {
		__sync_fetch_and_add(&line->count, count);
		return 0;
	}
	cells = counters_at(root, tenant / 8, slot);
	if (cells && slot < root->xdp_slots) {
		before = __sync_fetch_and_add(&cells[tenant & 7], count);
		carry_tenant(root, tenant, slot, before);
	}
	add_to_vm(root, vm, count);
	return 0;
}

/* Notes what the stages decided for a packet that goes on. */
static __always_inline void remember(struct packet *p)
{
	const void *ip = data_of(p->ctx) + p->inner_at + ETH_BYTES;
	const struct flow_miss *miss = map_value(&tunny_flow_misses, 0);
	const struct walk *w = map_value(&tunny_walks, 0);
	struct tunny_flow_line *line, *other;
	__u32 tenant = tenant_id(p->tenant_key);
	__u64 addresses, versions, luck;

	if (p->sender_v6 || p->inner_v6 || !miss || !w || !miss->place || !plain_flow(p))
		return;
	versions = miss->versions + (p->hops ? w->versions : 0);
	if (versions >= TUNNY_FLOW_CHANGING || ip + IPV4_BYTES > end_of(p->ctx))
		return;
	line = flow_line(p->slot, miss->place, 0);
	other = flow_line(p->slot, miss->place, 1);
	if (!line || !other)
		return;
	addresses = addresses_of(ip);
	luck = p->stats->rx * TUNNY_HASH_MUL_A >> 32;
	/* Its own, else an empty one, else in one of some packets either. */
	if (flow_is(other, addresses, miss->rest) || (!flow_is(line, addresses, miss->rest) && line->rest && (!other->rest || luck & 1)))
		line = other;
	if (line->rest && !flow_is(line, addresses, miss->rest)) {
		if (luck >> 1 & (TUNNY_FLOW_EVICT_ONE_IN - 1))
			return;
		p->stats->flow_evictions++;
	}
	tunny_flow_tell(line, p->slot);
	p->stats->flow_fills++;
	line->addresses = addresses;
	line->versions = versions | (__u64)tenant << TUNNY_FLOW_TENANT_SHIFT;
	line->sender = __builtin_bswap32(p->end->sender_lo);
	line->nc = __builtin_bswap32(p->nc_lo);
	store_be64(&line->macs, p->vm.mac << 16 | (p->gateway_mac >> 32 & 0xffff));
	store_be32(&line->macs_rest, p->gateway_mac);
	line->vni = __builtin_bswap32(p->to_vni << 8) | p->vm.id << TUNNY_FLOW_VM_SHIFT;
	line->nexthop = p->nexthop_line | tenant >> 16 << TUNNY_FLOW_TENANT_HIGH_SHIFT;
	store_be16(&line->port, tunny_source_port(p->flow_hash));
	line->vm_high = p->vm.id >> 8;
	line->count = 0;
	line->rest = miss->rest;
}

#endif

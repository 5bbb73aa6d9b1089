/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the stages know about the packet at hand, and what a stage answers.
 *
 * A stage returns GO, or the packet's end: a drop reason (its number), a punt (PUNT + reason) or PASS. The number is at
 * once the return value, the counter's index and the name in every report.
 *
 * Two structures, because the compiler treats them differently. `struct packet` never has its address taken outside of
 * inlined code, so it lives in registers and each of its fields costs nothing until it is used. `struct end` is what the
 * emit needs to know (drop, punt, pass); it lies in memory, so that a check on the hot path costs a compare and a
 * branch and not a set of registers prepared for the branch.
 */
#ifndef TUNNY_PACKET_H
#define TUNNY_PACKET_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <linux/in.h>
#include "tables/exact.h"
#include "tables/counter.h"
#include "tables/ports.h"

#define GO 0
#define DROP_REASONS TUNNY_DROP_REASONS_MAX
#define PUNT DROP_REASONS
#define PASS (PUNT + PUNT_REASONS)
#define PUNT_REASONS TUNNY_PUNT_REASONS_MAX

#define ETH_BYTES 14
#define IPV4_BYTES 20
#define IPV6_BYTES 40
#define UDP_BYTES 8
#define VXLAN_BYTES 8
#define IP_MF 0x2000
#define IP_OFFSET 0x1fff
#define PROTO_HOPOPTS 0
#define PROTO_ROUTING 43
#define PROTO_FRAGMENT 44
#define PROTO_AH 51
#define PROTO_DSTOPTS 60
#define PROTO_MOBILITY 135
#define PROTO_HIP 139
#define PROTO_SHIM6 140

/* How far the tenant stage came. */
enum admission { STRANGER, ATTRIBUTED, ACCEPTED, OF_CUSTOMER };

struct end {
	__u64 sender_hi;
	__u64 sender_lo;	/* or the IPv4 address */
	__u32 sender_v6;
	__u32 vni;
	__u32 inner_at;		/* offset of the inner Ethernet header, 0 if not parsed */
	__u32 inner_bytes;	/* of the inner frame */
	__u32 tenant;		/* id of the ingress VPC, 0 if not looked up */
	__u32 admission;
	__u32 target_v6;	/* inner destination of a packet with a link-local address, as are target_hi and target_lo */
	__u64 target_hi;
	__u64 target_lo;
	__u32 edge;		/* it came by a customer's circuit */
	__u32 tag_bytes;	/* of the tags that were taken off */
	__u32 tags[2];		/* those, as they stood there */
	__u64 guest;		/* MAC address of the VM by whose port it came, 0: by no VM port */
	struct segments segments;
	__u32 guess;		/* line of the record that the session of a pair of VMs seems to have, 0: none */
};

/* Not on the stack: 6.1 allows a chain of calls 512 bytes together. XDP never interrupts itself on a CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct end);
} tunny_ends SEC(".maps");

struct packet {
	struct frame_ctx *ctx;
	const struct end *end;	/* the later stages read there what they need seldom or late: on the stack it would lie twice */
	struct tunny_root *root;
	struct tunny_stats *stats;
	__u64 options;
	__u32 slot;		/* statistics slot: the CPU */
	__u32 bytes;		/* of the received frame */
	/* parse: outer */
	__u32 sender_v6;	/* a constant in each copy of the path, as are edge and inner_v6 */
	__u32 edge;		/* it came by a customer's circuit */
	__u32 outer_tos;	/* of the header around it */
	__u64 sender_lo;
	__u32 inner_at;
	__u32 inner_bytes;
	__u32 vni;
	/* parse: inner */
	__u32 inner_v6;
	__u64 dst_hi;
	__u64 dst_lo;		/* or the IPv4 address */
	__u64 flow_hash;
	__u32 ttl;
	__u32 inner_tos;
	__u32 ecn;		/* new inner ECN */
	/* hint: what was prefetched before it is needed */
	struct tunny_tenant_bucket *tenant_bucket;
	struct tunny_word_bucket *member_bucket;
	struct tunny_vm4_bucket *vm_bucket;
	__u32 vm_line;
	__u32 vm_rest;		/* if `own` is 0: where a search for the destination's entry goes on, 0: nowhere */
	__u64 own_key;		/* of the destination in the packet's own VPC */
	__u32 own;		/* position + 1 of that key in vm_bucket, and p->vm is read from it */
	__u32 cell_group;	/* of VM ids whose cells were prefetched */
	__u32 far;		/* the destination may be on the Internet, and its session was prefetched */
	__u32 nat;		/* nat has run, and its work names this packet */
	/* tenant, route, locate */
	__u64 tenant_key;	/* of the ingress VPC */
	__u64 roots;
	__u32 policy;		/* of the ingress VPC */
	__u32 to_policy;	/* of the destination's VPC, as are to_vni and gateway_mac */
	__u64 gateway_mac;
	__u32 to_vni;
	__u32 vm_found;
	struct vm vm;
	struct tunny_nexthop *nexthop;
	__u32 nexthop_line;
	__u32 hops;		/* VPCs passed by peer routes */
	__u64 nc_hi;
	__u64 nc_lo;
	__u32 nc_v6;
};

/* The first buffer ends before byte `need`: are the bytes in a further buffer, or is the frame too short? */
static __always_inline int short_of(struct packet *p, __u32 need, int reason)
{
	return buffers_bytes(p->ctx) >= need ? PUNT + PUNT_NONLINEAR_HEADERS : reason;
}

static __always_inline int frame_holds(struct packet *p, __u32 need)
{
	if (likely(need <= p->bytes))
		return 1;
	__u32 all = buffers_bytes(p->ctx);

	p->stats->rx_bytes += all - p->bytes;
	p->bytes = all;
	return need <= p->bytes;
}

/* A framing has laid the frame at `inner_at` bare: the frame received is counted as the packets that it stands for. */
static __always_inline void count_segments(struct frame_ctx *ctx, struct tunny_stats *stats, struct end *e, __u32 inner_at)
{
	measure(ctx, &e->segments, inner_at + ETH_BYTES);
	if (!stats)
		return;
	stats->rx += packets_in(&e->segments) - 1;
	stats->rx_bytes += bytes_in(&e->segments, 0, inner_at);
}

static __always_inline __u64 load_be64(const void *at)
{
	return __builtin_bswap64(*(const __u64 *)at);
}

static __always_inline __u32 load_be32(const void *at)
{
	return __builtin_bswap32(*(const __u32 *)at);
}

static __always_inline __u32 load_be16(const void *at)
{
	return __builtin_bswap16(*(const __u16 *)at);
}

static __always_inline void store_be16(void *at, __u32 value)
{
	*(__u16 *)at = __builtin_bswap16(value);
}

static __always_inline void store_be32(void *at, __u32 value)
{
	*(__u32 *)at = __builtin_bswap32(value);
}

static __always_inline void store_be64(void *at, __u64 value)
{
	*(__u64 *)at = __builtin_bswap64(value);
}

/* Destination and source MAC in two stores. */
static __always_inline void store_macs(void *eth, __u64 dst, __u64 src)
{
	store_be64(eth, dst << 16 | (src >> 32 & 0xffff));
	store_be32(eth + 8, src);
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a packet in a tunnel will need is prefetched, in two rounds:
 *
 * first_lines, once the outer headers are parsed: the buckets of the packet's VNI, of its sender, and of its
 * destination in its own VPC, and the words in which such a VPC and such a VM are counted as a rule. They depend on the
 * packet alone, so they cost one access to memory together.
 *
 * A destination that is no private address may be on the Internet: then, on a gateway with public addresses, both buckets of the
 * packet's session are prefetched as well.
 *
 * second_lines (tenant.h): reads the tenant; and prefetches the VM's cell, if it is not where it was expected. Which of it is true is
 * decided later, in the order of the stages: the entry counts only if its key word is still the same after the
 * tenant's roots have been read, so the packet sees one state of its VPC.
 */
#ifndef TUNNY_PREFETCH_STAGE_H
#define TUNNY_PREFETCH_STAGE_H

#include "../packet.h"
#include "../states/states.h"
#include "../tables/prefetch.h"
#include "../tables/session.h"

static __always_inline int private4(__u32 a)
{
	return a >> 24 == 10 || a >> 20 == 0xac1 || a >> 16 == 0xc0a8;
}

/* Asks for the session of an inner IPv4 packet with ports and no options, if it may have one. Anything else is looked up unasked. */
static __always_inline void session_lines(struct packet *p)
{
	const void *ip = data_of(p->ctx) + p->inner_at + ETH_BYTES;
	__u64 w0, w1;
	__u32 dst, proto;

	if (ip + IPV4_BYTES + 4 > end_of(p->ctx))
		return;
	dst = __builtin_bswap32(*(const __u32 *)(ip + 16));
	proto = *(const __u8 *)(ip + 9);
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return;
	w0 = (__u64)p->vni << 40 | (__u64)proto << 32 | __builtin_bswap32(*(const __u32 *)(ip + 12));
	w1 = (__u64)dst << 32 | __builtin_bswap32(*(const __u32 *)(ip + 20));
	p->far = tunny_session_prefetch(0, w0, w1);
}

/*
 * Asks for what security groups need of an inner IPv4 packet with ports and no options to its own VPC: the sender's entry; then the
 * lines of the state table, or the buckets of the session and the record that they name, whose key is the same both ways (filter.h).
 */
__noinline int tunny_pair_prefetch(struct frame_ctx *ctx, __u32 ip_at, __u32 vni)
{
	__u32 src, dst, proto, ports;
	const struct tunny_root *root = map_value(&tunny_root, 0);
	const void *ip = data_of(ctx) + (ip_at & 0xff), *sender;
	struct end *e = map_value(&tunny_ends, 0);
	__u64 w0, w1;
	int in;

	if (!root || !e || ip + IPV4_BYTES + 4 > end_of(ctx))
		return 0;
	proto = *(const __u8 *)(ip + 9);
	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return 0;
	src = __builtin_bswap32(*(const __u32 *)(ip + 12));
	dst = __builtin_bswap32(*(const __u32 *)(ip + 16));
	ports = __builtin_bswap32(*(const __u32 *)(ip + 20));
	in = src != dst ? src > dst : ports >> 16 > (ports & 0xffff);
	if (in)
		ports = ports >> 16 | ports << 16;
	w0 = (__u64)vni << 40 | (__u64)proto << 32 | (in ? dst : src);
	w1 = (__u64)(in ? src : dst) << 32 | ports;
	sender = line_at(bucket_line(root->vm4, tunny_hash1(vm4_key(vni, src), root->salt)));
	if (!sender)
		return 0;
	if (!tunny_state_prefetch(w0, w1))
		e->guess = tunny_session_guess(2 | vni << 8, w0, w1);
	touch(sender);
	return 0;
}

/*
 * First all places, then all loads, one behind the other: a CPU looks some 300 instructions ahead of a load that it waits
 * for, and the places take as many.
 */
static __always_inline int first_lines(struct packet *p)
{
	const void *dst = data_of(p->ctx) + p->inner_at + ETH_BYTES + 16;
	__u32 inner_dst = dst + 4 > end_of(p->ctx) ? 0 : load_be32(dst);
	struct tunny_root *root = p->root;
	__u64 salt = root->salt;
	__u64 member = (__u64)p->vni << 40 | p->sender_lo << 8 | TUNNY_MEMBER_V4;
	__u64 hash = tenant_hash(p->vni, salt);
	const void *cells, *counters;

	p->tenant_bucket = tenant_bucket_at(root, hash);
	counters = counters_at(root, tunny_bucket_of(hash, root->tenant_groups), p->slot);
	p->own_key = vm4_key(p->vni, inner_dst);
	hash = tunny_hash1(p->own_key, salt);
	p->vm_line = bucket_line(root->vm4, hash);
	p->vm_bucket = line_at(p->vm_line);
	p->cell_group = tunny_bucket_of(hash, root->vm_groups);
	cells = cells_at(root, p->cell_group);
	p->member_bucket = line_at(bucket_line(root->members, tunny_hash1(member, salt)));
	if (!p->tenant_bucket || !p->vm_bucket || (!p->edge && !p->member_bucket))
		return DROP_TABLE_FAULT;
	/* Its places are worked out before anything is waited for. */
	if (unlikely(root->filtered))
		tunny_pair_prefetch(p->ctx, p->inner_at + ETH_BYTES, p->vni);
	touch(p->vm_bucket);
	touch(p->tenant_bucket);
	/* Peers and policy. The same page, so next to nothing. */
	touch(p->tenant_bucket->peers);
	if (!p->edge)
		touch(p->member_bucket);
	touch_line(counters);
	/* No VM is counted for what goes to the Internet, and each line that is prefetched is waited for at the packet's end. */
	if (unlikely(root->public_roots) && !private4(inner_dst))
		session_lines(p);
	else
		touch_line(cells);
	return GO;
}

#endif

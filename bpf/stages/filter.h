/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * filter: security groups. The verdict of a connection lies in its session, which the software path makes; a packet of an established
 * session whose rules are the present ones goes on here, every other one is the software path's.
 *
 * Or a state table tells what becomes of a packet (bpf/states): then data packets are judged by it, and control packets are the
 * software path's, whose agent writes the table.
 *
 * It runs once the destination is known: a session is of two ends. What leads to the Internet or comes from there has its
 * verdict in nat's session. A packet between VPCs without groups meets one test.
 */
#ifndef TUNNY_FILTER_H
#define TUNNY_FILTER_H

#include "../connection/states.h"
#include "../tables/nc.h"

/* What the VPCs of both ends say, as far as they have groups: flags, and the sum of their epochs. */
static __always_inline __u64 pair_policy(const struct packet *p)
{
	__u64 near = p->policy & TUNNY_POLICY_FILTER ? p->policy : 0, far;

	if (p->to_vni == p->vni)
		return near;
	far = p->to_policy & TUNNY_POLICY_FILTER ? p->to_policy : 0;
	return ((near | far) & 0xffff) | ((near & 0xffff0000) + (far & 0xffff0000));
}

/* The key of both directions: the lower end (by address, then VNI, then port) stands as the VM. Returns 1 if it is the receiver. */
static __always_inline int pair_key(struct nat_work *w)
{
	__u32 echo = w->upper == UPPER_ECHO, near = echo ? 0 : w->src_port, far = echo ? 0 : w->dst_port, ports;
	int in;

	if (w->src_hi != w->dst_hi)
		in = w->src_hi > w->dst_hi;
	else if (w->src_lo != w->dst_lo)
		in = w->src_lo > w->dst_lo;
	else if (w->vni != w->to_vni)
		in = w->vni > w->to_vni;
	else
		in = near > far;
	ports = echo || !in ? w->src_port << 16 | w->dst_port : w->dst_port << 16 | w->src_port;
	w->key.v6 = w->v6;
	w->key.outer = 2 | (in ? w->vni : w->to_vni) << 8;
	w->key.w[0] |= (__u64)(in ? w->to_vni : w->vni) << 40;
	if (w->v6) {
		w->key.w[0] |= ports;
		w->key.w[1] = in ? w->dst_hi : w->src_hi;
		w->key.w[2] = in ? w->dst_lo : w->src_lo;
		w->key.w[3] = in ? w->src_hi : w->dst_hi;
		w->key.w[4] = in ? w->src_lo : w->dst_lo;
	} else {
		w->key.w[0] |= in ? w->dst_lo : w->src_lo;
		w->key.w[1] = (in ? w->src_lo : w->dst_lo) << 32 | ports;
	}
	return in;
}

/* Is the NC the one that sent the packet? */
static __always_inline int sent_by(const struct tunny_root *root, const struct nat_work *w, __u32 nc)
{
	__u64 word = nc_word(root, nc);
	struct tunny_nc_record *record;

	if (!(word & TUNNY_NC_VALID) || !(word & TUNNY_NC_V6) != !w->sender_v6)
		return 0;
	if (!w->sender_v6)
		return word >> 32 == w->sender_lo;
	record = nc_record(root, nc);
	return record && record->addr_hi == w->sender_hi && record->addr_lo == w->sender_lo;
}

/* The source must be a VM of the VPC on the NC that sent the packet. GO or a verdict. */
static __always_inline int check_sender(struct tunny_root *root, struct nat_work *w)
{
	w->walk.hops = 0;
	w->walk.own_missed = 0;
	w->walk.vni = w->vni;
	w->walk.v6 = w->v6;
	w->walk.dst_hi = w->src_hi;
	w->walk.dst_lo = w->src_lo;
	if (!find_vm(root, &w->walk))
		return PUNT + PUNT_FILTER_SOURCE;
	if (w->walk.vm.flags & TUNNY_VM_FLAG_GATEWAY)
		return DROP_FILTER_SPOOFED;
	return root->options & TUNNY_OPT_SOURCE_STRICT && !sent_by(root, w, w->walk.vm.nc) ? DROP_FILTER_SPOOFED : GO;
}

/* A packet between two ends inside of which one has groups. GO or a verdict. */
__noinline int tunny_filter(struct xdp_md *ctx, struct nat_work *w)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	int end;

	if (!w || !root)
		return DROP_TABLE_FAULT;
	w->src_hi = 0;
	w->dst_hi = 0;
	end = read_packet(ctx, w);
	if (end)
		return PUNT + (end & (PUNT_REASONS - 1));
	end = check_sender(root, w);
	if (end)
		return end;
	return by_connection(w, pair_key(w), w->line);
}

/* The stage. What locate refuses is left to it. */
static __always_inline int filter(struct packet *p, const struct end *e)
{
	struct nat_work *w;

	if (likely(!((p->policy | p->to_policy) & TUNNY_POLICY_FILTER)))
		return GO;
	if (!p->vm_found || p->vm.flags & TUNNY_VM_FLAG_GATEWAY || p->ttl <= 1)
		return GO;
	w = map_value(&tunny_nat_works, 0);
	if (!w)
		return DROP_TABLE_FAULT;
	w->at = p->inner_at + ETH_BYTES;
	w->v6 = p->inner_v6;
	w->vni = p->vni;
	w->to_vni = p->to_vni;
	w->walk.roots = p->roots;
	w->policy = pair_policy(p);
	w->sender_hi = e->outer_src_hi;
	w->sender_lo = e->outer_src_lo;
	w->sender_v6 = e->outer_v6;
	w->line = e->guess;
	return tunny_filter(p->ctx, w);
}

#endif

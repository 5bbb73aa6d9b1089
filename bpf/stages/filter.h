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
#include "../tables/flow_cache.h"
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

/* Whether the end that stands as the VM in the key is the receiver: the server, or the lower end (by address, then VNI, then port). */
static __always_inline int towards_first(const struct flow *w)
{
	if (w->server)
		return w->server == SERVER_GETS;
	if (w->src_hi != w->dst_hi)
		return w->src_hi > w->dst_hi;
	if (w->src_lo != w->dst_lo)
		return w->src_lo > w->dst_lo;
	if (w->vni != w->to_vni)
		return w->vni > w->to_vni;
	return w->upper != UPPER_ECHO && w->src_port > w->dst_port;
}

/* The key of both directions. An identifier is the first end's both ways, and the other port 0. */
static __always_inline void pair_key(struct flow *w, int in)
{
	__u32 ports = w->upper == UPPER_ECHO || !in ? w->src_port << 16 | w->dst_port : w->dst_port << 16 | w->src_port;

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
}

/* Is the NC the one that sent the packet? */
static __always_inline int sent_by(const struct tunny_root *root, const struct flow *w, __u32 nc)
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
static __always_inline int check_sender(struct tunny_root *root, struct flow *w)
{
	struct flow_miss *miss = map_value(&tunny_flow_misses, 0);

	walk_to(&w->walk, w->vni, w->v6, w->src_hi, w->src_lo);
	if (tunny_flow.chunks && miss)
		miss->more = flow_version_v4(root, w->vni, w->src_lo);
	if (!find_vm(root, &w->walk))
		return PUNT + PUNT_FILTER_SOURCE;
	if (w->walk.vm.flags & TUNNY_VM_FLAG_GATEWAY)
		return DROP_FILTER_SPOOFED;
	return root->options & TUNNY_OPT_SOURCE_STRICT && !sent_by(root, w, w->walk.vm.nc) ? DROP_FILTER_SPOOFED : GO;
}

/* A packet between two ends of which one has groups. What its framing has read of a server's packet stands already. GO or a verdict. */
__noinline int tunny_filter(struct frame_ctx *ctx, struct flow *w)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	int end, in;

	if (!w || !root)
		return DROP_TABLE_FAULT;
	if (!w->server) {
		w->src_hi = 0;
		w->dst_hi = 0;
		w->why = read_packet(ctx, w);
	}
	if (w->why)
		return PUNT + (w->why & (PUNT_REASONS - 1));
	/* What may come from a line stage tenant has seen. */
	if (!w->server && !w->from_line) {
		end = check_sender(root, w);
		if (end)
			return end;
	}
	in = towards_first(w);
	pair_key(w, in);
	return by_connection(w, in, w->line);
}

/* Whether the stage has something to say of a packet. What locate refuses is left to it. */
static __always_inline int filters(const struct packet *p)
{
	return unlikely((p->policy | p->to_policy) & TUNNY_POLICY_FILTER) && p->vm_found && !(p->vm.flags & TUNNY_VM_FLAG_GATEWAY) && p->ttl > 1;
}

/* What the stage must know of a packet that has none of it yet. */
static __always_inline void filter_fill(struct flow *w, const struct packet *p, const struct end *e)
{
	w->to_vni = p->to_vni;
	w->walk.roots = p->roots;
	w->policy = pair_policy(p);
	w->sender_hi = e->sender_hi;
	w->sender_lo = e->sender_lo;
	w->sender_v6 = e->sender_v6;
	w->line = e->guess;
}

/* The stage. */
static __always_inline int filter(struct packet *p, const struct end *e)
{
	struct flow *w;

	if (!filters(p))
		return GO;
	w = map_value(&tunny_flows, 0);
	if (!w)
		return DROP_TABLE_FAULT;
	flow_of(w, p);
	filter_fill(w, p, e);
	return tunny_filter(p->ctx, w);
}

/* What has passed the stage is taken by its session, unless `end` hands it over. */
static __always_inline void filter_takes(const struct packet *p, int end)
{
	const struct flow *w = map_value(&tunny_flows, 0);

	if (filters(p) && w && end < PUNT)
		connection_takes(w);
}

/* The stage for a server's packet, whose framing filled in the flow. The other end has no VNI. */
static __always_inline int filter_server(struct frame_ctx *ctx, struct flow *w)
{
	if (!(w->policy & TUNNY_POLICY_FILTER))
		return GO;
	w->to_vni = 0;
	if (w->server == SERVER_GETS) {
		w->to_vni = w->vni;
		w->vni = 0;
	}
	w->line = 0;
	return tunny_filter(ctx, w);
}

#endif

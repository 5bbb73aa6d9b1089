/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Nat inwards: plain packets to a public address get a tunnel to the VM's NC. */
#ifndef TUNNY_NAT_IN_H
#define TUNNY_NAT_IN_H

#include "nat_rewrite.h"
#include "locate.h"
#include "meter.h"
#include "emit.h"

/* The VPC of the session: its record, and what emit needs to know. Returns GO or a verdict. */
static __always_inline int enter_vpc(struct tunny_root *root, struct nat_work *w, struct end *e)
{
	struct tenant t;

	if (!tenant_find(root, w->vni, &t))
		return DROP_NAT_UNSOLICITED;
	w->policy = t.policy;
	if (!(w->policy & TUNNY_POLICY_NAT))
		return DROP_NAT_UNSOLICITED;
	w->walk.roots = t.roots;
	w->walk.gateway_mac = t.mac;
	e->vni = w->vni;
	e->tenant = tenant_id(t.key);
	e->admission = ATTRIBUTED;
	return GO;
}

/* The VM of the session, in the VM-NC table. */
static __always_inline void find_target(struct tunny_root *root, struct nat_work *w, struct tunny_session_record *r)
{
	struct tunny_session_addresses *a;

	w->walk.hops = 0;
	w->walk.own_missed = 0;
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

/* What is wrong with a plain packet to a public address. Returns GO or a verdict; *scope says what the address takes. */
static __always_inline int read_plain(struct xdp_md *ctx, struct tunny_root *root, struct nat_work *w, __u32 *scope)
{
	__u64 roots = READ_ONCE(root->public_roots);
	int type, why, bad;
	void *ip = front(ctx) + ETH_BYTES;

	if (ip > behind(ctx))
		return PASS;
	type = *(__u16 *)(ip - 2);
	w->at = ETH_BYTES;
	w->frame = frame_bytes(ctx);
	if (type == NET16(ETH_P_IP)) {
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
	} else if (type == NET16(ETH_P_IPV6)) {
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
	if (w->v6)
		bad = unforwardable6(root->options, w->src_hi, w->src_lo, w->dst_hi, w->dst_lo);
	else
		bad = unforwardable4(root->options, w->src_lo, w->dst_lo);
	if (bad)
		return bad;
	if (w->v6)
		bad = route128(roots >> 32, w->src_hi, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT;
	else
		bad = route32(roots, w->src_lo) >> TUNNY_VALUE_SCOPE_SHIFT;
	if (bad)
		return DROP_INNER_MARTIAN;
	return why ? PUNT + why : GO;
}

/* A plain packet that parse would pass. PASS: not for a public address. GO: w says to which VM it goes. */
__noinline int tunny_nat_find(struct xdp_md *ctx, struct nat_work *w, struct end *e)
{
	__u32 scope = 0;
	struct tunny_root *root = map_value(&tunny_root, 0);
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
	tunny_prefetch(w->vni, READ_ONCE(r->inner0), cpu_number());
	end = enter_vpc(root, w, e);
	if (end)
		return end;
	end = session_verdict(w, r, w->state, 1);
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
	__u32 slot = cpu_number();
	struct packet p = { .ctx = ctx, .slot = slot };
	struct tunny_session_record *r;
	int end, action = 0;

	p.root = map_value(&tunny_root, 0);
	p.stats = map_value(&tunny_stats, slot);
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
	p.stats->nat++;
	return -action;
}

/* What is not for the gateway's tunnel: is it for a public address? */
static __always_inline int nat_in(struct xdp_md *ctx, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct nat_work *w;
	int end;

	if (!root || likely(!READ_ONCE(root->public_roots)))
		return PASS;
	w = map_value(&tunny_nat_works, 0);
	if (!w)
		return PASS;
	end = tunny_nat_find(ctx, w, e);
	return end ? end : tunny_nat_deliver(ctx, w, e);
}

#endif

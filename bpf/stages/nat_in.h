/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Nat inwards: plain packets to a public address get a tunnel to the VM's NC. */
#ifndef TUNNY_NAT_IN_H
#define TUNNY_NAT_IN_H

#include "nat_rewrite.h"
#include "../framing/plain.h"
#include "../framing/vmport.h"
#include "locate.h"
#include "meter.h"
#include "rewrite.h"
#include "emit.h"
#include "remember.h"

/* The VPC of the session: its record, and what emit needs to know. Returns GO or a verdict. */
static __always_inline int enter_vpc(struct tunny_root *root, struct flow *w, struct end *e)
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
	return unlikely(w->policy & TUNNY_POLICY_PATH_SOFTWARE) && !tunny_probes.only ? PUNT + PUNT_PATH_SOFTWARE : GO;
}

/* The VM of the session, in the VM-NC table. */
static __always_inline void find_target(struct tunny_root *root, struct flow *w, struct tunny_session_record *r)
{
	struct tunny_session_addresses *a;

	walk_to(&w->walk, w->vni, w->v6, 0, READ_ONCE(r->inner0) & 0xffffffff);
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
static __always_inline __u64 arriving(const struct flow *w, __u32 port)
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

/* A plain packet that parse would pass. PASS: not for a public address. GO: w says to which VM it goes. */
__noinline int tunny_nat_find(struct frame_ctx *ctx, struct flow *w, struct end *e)
{
	__u32 scope = 0;
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_session_record *r;
	int end;

	if (!e || !w || !root)
		return PASS;
	end = plain_decapsulate(ctx, root, w, &scope);
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
	if (tunny_flow.chunks) {
		struct flow_miss *miss = map_value(&tunny_flow_misses, 0);

		if (miss)
			miss->more = flow_versions(root, w->vni, READ_ONCE(r->inner0));
	}
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
	if (sizeof(e->segments))
		count_segments(ctx, map_value(&tunny_stats, cpu_number()), e, 0);
	w->segments = e->segments;
	if (unlikely(!w->walk.found))
		/* The software path knows whether it is a site's. */
		return tunny_probes.only ? DROP_VM_UNKNOWN : PUNT + PUNT_PATH_SOFTWARE;
	return w->walk.vm.flags & TUNNY_VM_FLAG_GATEWAY ? DROP_VM_UNKNOWN : GO;
}

/* Locates, meters, wraps and sends it. Negative: sent. */
__noinline int tunny_nat_deliver(struct frame_ctx *ctx, struct flow *w, const struct end *e)
{
	__u32 slot = cpu_number();
	struct packet p = { .ctx = ctx, .end = e, .slot = slot };
	struct tunny_session_record *r;
	int end;

	p.root = map_value(&tunny_root, 0);
	p.stats = map_value(&tunny_stats, slot);
	if (!e || !w || !p.root || !p.stats)
		return DROP_TABLE_FAULT;
	/* The stages from here on work in registers. */
	p.gateway_mac = w->walk.gateway_mac;
	p.options = READ_ONCE(p.root->options);
	p.vm = w->walk.vm;
	p.vm_found = 1;
	p.bytes = w->frame;
	p.to_vni = w->vni;
	p.outer_tos = p.inner_tos = w->tos;
	p.ecn = w->tos & 3;
	p.ttl = w->ttl;
	p.flow_hash = arriving(w, w->port);
	end = locate(&p);
	/* To a VM of this node: the software path has the way. */
	if (unlikely(end == DROP_UNDERLAY_NO_ROUTE) && tunny_near(p.to_vni, p.vm.mac, p.vm.nc) && !tunny_probes.only)
		end = PUNT + PUNT_PATH_SOFTWARE;
	if (!end)
		end = meter(&p);
	if (end)
		return end;
	if (!w->v6 && translate4(ctx, w->at, w->upper, w->walk.dst_lo, w->port, 1))
		return DROP_TX_FAILED;
	p.inner_v6 = w->v6;
	end = rewrite(&p);
	if (!end)
		end = encapsulate(&p);
	if (!end)
		end = emit(&p);
	if (end >= 0)
		return end;
	r = session_line(w->line);
	if (r)
		take(w, r, w->state, 1);
	p.stats->nat += packets_in(&e->segments);
	if (tunny_flow.chunks)
		remember_in(&p, w);
	return end;
}

/* What is not for the gateway's tunnel: is it for a public address? */
static __always_inline int nat_in(struct frame_ctx *ctx, struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct flow *w;
	int end;

	if (!root || likely(!READ_ONCE(root->public_roots)))
		return PASS;
	w = map_value(&tunny_flows, 0);
	if (!w)
		return PASS;
	end = tunny_nat_find(ctx, w, e);
	return end ? end : tunny_nat_deliver(ctx, w, e);
}

#endif

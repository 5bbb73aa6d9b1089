/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * tenant: VNI to tenant; may this source send for it.
 *
 * `tenant` serves what goes on to the next stage. `tunny_refuse` serves what was found wrong with the inner frame, ARP and
 * ND: the same two questions, slowly, then the verdict that waits. So it is counted for the tenant, and only if the
 * sender may send.
 */
#ifndef TUNNY_TENANT_H
#define TUNNY_TENANT_H

#include "../packet.h"
#include "../framing/qinq.h"
#include "../framing/vmport.h"
#include "../tables/prefetch.h"

/* May an NC with an IPv6 address send for this VNI? */
static __always_inline int check_source6(struct tunny_root *root, const struct end *e)
{
	struct key6 key = { .hi = e->sender_hi, .lo = e->sender_lo };
	struct vm nc;
	__u64 word, found = tunny_vm6_chain(root->nc6, root->salt, &key);

	if (!found || vm6_read(found, &nc))
		return DROP_SOURCE_UNKNOWN;
	word = (__u64)e->vni << 40 | (__u64)nc.nc << 8 | TUNNY_MEMBER_V6;
	return word_lookup(root->members, root->salt, word, 0) ? GO : DROP_SOURCE_NOT_HOSTING;
}

/* May an NC with this IPv4 address send for this VNI? Looked up again when it is not in its bucket. */
static __always_inline int check_source4(struct tunny_root *root, const struct end *e)
{
	__u64 word = (__u64)e->vni << 40 | e->sender_lo << 8 | TUNNY_MEMBER_V4;

	if (word_lookup(root->members, root->salt, word, 0))
		return GO;
	return word_lookup(root->nc4, root->salt, e->sender_lo, TUNNY_WORD_NC4_SHIFT) ? DROP_SOURCE_NOT_HOSTING :
											   DROP_SOURCE_UNKNOWN;
}

/* Inlined in both: 6.1 allows the frames of a chain of calls 512 bytes together, each rounded up. */
static __always_inline int source_of(struct tunny_root *root, const struct end *e)
{
	return e->sender_v6 ? check_source6(root, e) : check_source4(root, e);
}

/* Global, as is tunny_refuse: verified once, apart from its callers. */
__noinline int tunny_check_source(const struct end *e)
{
	struct tunny_root *root = map_value(&tunny_root, 0);

	return e && root ? source_of(root, e) : DROP_TABLE_FAULT;
}

/* The tenant stage for what ends here with `verdict`, if tenant and source are in order. */
__noinline int tunny_refuse(struct end *e, int verdict)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct tenant t;
	int end;

	if (!e || !root)
		return DROP_TABLE_FAULT;
	if (!tenant_lookup(root, e->vni, &t))
		return DROP_VNI_UNKNOWN;
	e->tenant = tenant_id(t.key);
	e->admission = ATTRIBUTED;
	if (root->options & TUNNY_OPT_SOURCE_STRICT && !e->edge) {
		end = source_of(root, e);
		if (end)
			return end;
	}
	e->admission = ACCEPTED;
	return verdict;
}

/* Reads the tenant's entry. 0 if its VNI is not in its bucket. */
static __always_inline int second_lines(struct packet *p)
{
	struct tenant t;
	int found = tenant_match(p->tenant_bucket, p->vni, &t);
	__u64 marks = 0;

	p->tenant_key = t.key;
	p->roots = t.roots;
	p->gateway_mac = t.mac;
	p->policy = t.policy;
	p->own = p->inner_v6 ? 0 : vm4_match(p->vm_bucket, p->own_key | TUNNY_KEY_VALID, &marks);
	p->vm_rest = 0;
	if (!p->own)
		p->vm_rest = vm4_rest(p->vm_bucket, p->vm_line, marks);
	if (p->own) {
		vm4_read(p->vm_bucket, p->own - 1, &p->vm);
		if (unlikely(p->vm.id >> 3 != p->cell_group))
			touch_line(cells_at(p->root, p->vm.id >> 3));
	}
	return found;
}

/* The VNI is not in its bucket: follow the chain. */
static __always_inline int find_tenant(struct packet *p)
{
	struct tenant t;

	if (!tenant_lookup(p->root, p->vni, &t))
		return 0;
	p->tenant_key = t.key;
	p->roots = t.roots;
	p->gateway_mac = t.mac;
	p->policy = t.policy;
	/* The VM's bucket was read before these roots: what it lacked then says nothing. */
	p->vm_rest = p->vm_line;
	return 1;
}

static __always_inline int tenant(struct packet *p, struct end *e)
{
	__u64 member = (__u64)p->vni << 40 | p->sender_lo << 8 | TUNNY_MEMBER_V4;
	int end;

	if (unlikely(!second_lines(p)) && !find_tenant(p))
		return DROP_VNI_UNKNOWN;
	e->tenant = tenant_id(p->tenant_key);
	e->admission = ATTRIBUTED;
	if (!p->edge && p->options & TUNNY_OPT_SOURCE_STRICT && (p->sender_v6 || unlikely(!word_present(p->member_bucket, member)))) {
		end = tunny_check_source(e);
		if (end)
			return end;
	}
	e->admission = ACCEPTED;
	p->to_vni = p->vni;
	if (unlikely(p->policy & (TUNNY_POLICY_PATH_SOFTWARE | TUNNY_POLICY_SHAPED)) && !tunny_probes.only) {
		if (p->policy & TUNNY_POLICY_PATH_SOFTWARE)
			return PUNT + PUNT_PATH_SOFTWARE;
		if (!p->edge)
			return tunny_sender(p->ctx, e, p->roots, p->inner_v6, p->inner_at);
	}
	if (!p->edge)
		return GO;
	return e->guest ? tunny_sender(p->ctx, e, p->roots, p->inner_v6, 0) : tunny_line_source(p->ctx, p->roots, p->inner_v6);
}

#endif

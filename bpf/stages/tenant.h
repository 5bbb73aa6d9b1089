/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* tenant: VNI to tenant record; may this source send for it; what was wrong with the inner frame; ARP and ND. */
#ifndef TUNNY_TENANT_H
#define TUNNY_TENANT_H

#include "packet.h"

/* The sender is not a member of the VPC: does it exist at all? */
static __always_inline int refuse_source(struct packet *p, __u64 nc_found)
{
	return nc_found ? DROP_SOURCE_NOT_HOSTING : DROP_SOURCE_UNKNOWN;
}

static __always_inline int check_source(struct packet *p)
{
	struct tunny_root *root = p->root;
	__u64 word;

	if (likely(!p->outer_v6)) {
		word = (__u64)p->vni << 40 | p->outer_src_lo << 8 | TUNNY_MEMBER_V4;
		if (likely(word_present(p->member_bucket, word)) || word_lookup(root->members, root->salt, word, 0))
			return GO;
		return refuse_source(p, word_lookup(root->nc4, root->salt, p->outer_src_lo, TUNNY_WORD_NC4_SHIFT));
	}
	struct key6 key = { .hi = p->outer_src_hi, .lo = p->outer_src_lo };
	struct vm nc;
	__u64 found = tunny_vm6_chain(root->nc6, root->salt, &key);

	if (!found || vm6_read(found, &nc))
		return DROP_SOURCE_UNKNOWN;
	word = (__u64)p->vni << 40 | (__u64)nc.nc << 8 | TUNNY_MEMBER_V6;
	return word_lookup(root->members, root->salt, word, 0) ? GO : refuse_source(p, 1);
}

static __always_inline int tenant(struct packet *p)
{
	struct tunny_root *root = p->root;
	int verdict;
	__u32 line = word_match(p->tenant_bucket, p->vni, TUNNY_WORD_TENANT_SHIFT);

	if (unlikely(!line)) {
		line = word_lookup(root->tenants, root->salt, p->vni, TUNNY_WORD_TENANT_SHIFT);
		if (!line)
			return DROP_VNI_UNKNOWN;
	}
	p->tenant_line = line;
	p->tenant = line_at(line);
	if (!p->tenant)
		return DROP_TABLE_FAULT;
	if ((READ_ONCE(p->tenant->ident) & (TUNNY_TENANT_VALID | 0xffffff)) != (TUNNY_TENANT_VALID | p->vni))
		return DROP_TABLE_FAULT; /* the table of tenants led here, so this is no unknown VNI */
	p->to_vni = p->vni;
	p->attributed = 1;
	if (p->options & TUNNY_OPT_SOURCE_STRICT) {
		verdict = check_source(p);
		if (verdict)
			return verdict;
	}
	p->accepted = 1;
	if (p->inner_verdict)
		return p->inner_verdict;
	if (unlikely(p->kind == KIND_ARP))
		return PUNT + PUNT_ARP;
	if (unlikely(p->kind == KIND_ND))
		return PUNT + PUNT_ND;
	p->roots = READ_ONCE(p->tenant->roots);
	p->meter = READ_ONCE(p->tenant->meter);
	return GO;
}

#endif

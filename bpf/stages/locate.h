/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* locate: VM-NC entry, TTL, underlay next hop, packet size. */
#ifndef TUNNY_LOCATE_H
#define TUNNY_LOCATE_H

#include "route.h"
#include "../framing/framing.h"
#include "../tables/nc.h"

static __always_inline int find_nexthop(struct packet *p)
{
	struct tunny_root *root = p->root;
	struct tunny_nexthop_group *group;
	struct tunny_nc_record *nc;
	struct near near = {};
	__u32 line, count, member;
	__u64 word = nc_word(root, p->vm.nc);

	line = word >> TUNNY_NC_GROUP_SHIFT & TUNNY_ROOT_LINE_MASK;
	if (!(word & TUNNY_NC_VALID) || !line)
		return DROP_UNDERLAY_NO_ROUTE;
	p->nc_v6 = !!(word & TUNNY_NC_V6);
	p->nc_hi = 0;
	p->nc_lo = word >> 32;
	if (unlikely(p->nc_v6)) {
		nc = nc_record(root, p->vm.nc);
		if (!nc)
			return DROP_UNDERLAY_NO_ROUTE;
		p->nc_hi = nc->addr_hi;
		p->nc_lo = nc->addr_lo;
	}
	if (p->nc_v6 ? !(root->vtep6_hi | root->vtep6_lo) : !root->vtep4)
		return DROP_UNDERLAY_NO_ROUTE;
	group = line_near(&near, line);
	if (!group)
		return DROP_UNDERLAY_NO_ROUTE;
	count = READ_ONCE(group->count);
	if (!count || count > TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	member = tunny_bucket_of(p->flow_hash, count);
	OPAQUE(member);
	if (member >= TUNNY_GROUP_NEXTHOPS_MAX)
		return DROP_UNDERLAY_NO_ROUTE;
	line = READ_ONCE(group->members[member]);
	p->nexthop_line = line;
	p->nexthop = line ? line_near(&near, line) : NULL;
	return p->nexthop ? GO : DROP_UNDERLAY_NO_ROUTE;
}

static __always_inline int locate(struct packet *p)
{
	int verdict;

	if (!p->vm_found)
		return icmp_or(p->options, DROP_VM_UNKNOWN);
	if (unlikely(p->vm.flags & (TUNNY_VM_FLAG_GATEWAY | TUNNY_VM_FLAG_SHAPED))) {
		if (p->vm.flags & TUNNY_VM_FLAG_GATEWAY)
			return PUNT + PUNT_GATEWAY_ADDRESS;
		/* Only the software path can let a packet wait. */
		if (!tunny_probes.only)
			return PUNT + PUNT_SHAPED;
	}
	if (p->ttl <= 1)
		return icmp_or(p->options, DROP_TTL_EXPIRED);
	verdict = find_nexthop(p);
	if (verdict)
		return verdict;
	if (!(READ_ONCE(p->nexthop->dmac) & TUNNY_NEXTHOP_READY))
		return PUNT + PUNT_NEXTHOP_UNRESOLVED;
	if (overhead(p) + longest_in(&p->end->segments, p->end->inner_bytes) > READ_ONCE(p->nexthop->smac_mtu) >> 48)
		return PUNT + PUNT_ICMP_DUE;
	return unlikely(cannot_wrap(p)) ? PUNT + PUNT_OFFLOADED : GO;
}

#endif

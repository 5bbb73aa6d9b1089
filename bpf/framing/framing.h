/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How a packet is wrapped when it leaves, for stages that know only that it is: what locate decided names the framing. Today each NC is at
 * the end of a VXLAN tunnel.
 */
#ifndef TUNNY_FRAMING_H
#define TUNNY_FRAMING_H

#include "vxlan.h"

/* Bytes around the frame that the next hop's MTU counts. */
static __always_inline __u32 overhead(const struct packet *p)
{
	return vxlan_overhead(p->nc_v6);
}

/* What is left to drivers cannot be left to them in the tunnel that locate has chosen. */
static __always_inline int cannot_wrap(const struct packet *p)
{
	return vxlan_needs_whole(p);
}

static __always_inline int encapsulate(struct packet *p)
{
	return vxlan_encapsulate(p);
}

#endif

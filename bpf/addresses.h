/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Special-purpose addresses, which are not forwarded: docs/reference/special-addresses.md */
#ifndef TUNNY_ADDRESSES_H
#define TUNNY_ADDRESSES_H

#include "packet.h"

/* What the special-purpose addresses of a packet come to: GO or a drop. docs/reference/special-addresses.md */
static __always_inline int unforwardable(__u64 options, int src, int dst)
{
	if (likely(!(src | dst)))
		return GO;
	if (src == DROP_INNER_LINK_LOCAL || dst == DROP_INNER_LINK_LOCAL)
		return DROP_INNER_LINK_LOCAL;
	if (src == DROP_INNER_MARTIAN || dst == DROP_INNER_MARTIAN)
		return DROP_INNER_MARTIAN;
	return options & TUNNY_OPT_DOCUMENTATION_DROPPED ? DROP_INNER_DOCUMENTATION : GO;
}

/* The same for the addresses themselves. A multicast destination is no part of it. */
static __always_inline int unforwardable4(__u64 options, __u32 src, __u32 dst)
{
	int from = src >= 0xe0000000 ? DROP_INNER_MARTIAN : tunny_special4(src, 1);

	return unforwardable(options, from, tunny_special4(dst, 0));
}

/* Why a packet from this address is not forwarded; 0: it is. */
static __always_inline int source6(__u64 hi, __u64 lo)
{
	return hi >> 56 == 0xff ? DROP_INNER_MARTIAN : tunny_special6(hi, lo, 1);
}

static __always_inline int unforwardable6(__u64 options, __u64 src_hi, __u64 src_lo, __u64 dst_hi, __u64 dst_lo)
{
	return unforwardable(options, source6(src_hi, src_lo), tunny_special6(dst_hi, dst_lo, 0));
}

#endif

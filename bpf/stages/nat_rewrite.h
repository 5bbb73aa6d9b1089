/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Translation of addresses and ports. From here on nothing may punt the packet. */
#ifndef TUNNY_NAT_REWRITE_H
#define TUNNY_NAT_REWRITE_H

#include "../connection/packet.h"

static __always_inline void change_sum(void *at, __u64 difference)
{
	*(__u16 *)at = ~fold((__u64)(__u16)~*(__u16 *)at + difference);
}

#ifndef TUNNY_SKB
/* The TCP or UDP checksum at `at` with another address and port in it. -1: it is not there. */
static __always_inline int change_upper_sum(struct frame_ctx *ctx, __u32 at, int udp, __u32 old_addr, __u32 new_addr, __u16 old_port,
					    __u16 new_port)
{
	__u64 change = (__u64)(__u32)~old_addr + new_addr + (__u16)~old_port + new_port;
	__u16 *sum = front(ctx) + at;

	if ((void *)(sum + 1) > behind(ctx))
		return -1;
	if (udp && !*sum)
		return 0;
	change_sum(sum, change);
	if (udp && !*sum)
		*sum = 0xffff;
	return 0;
}
#endif

/*
 * Gives an IPv4 packet with this upper header, which is whole, another source (or destination: `in`) and port: checksums by difference, a UDP
 * checksum of zero stays, one that becomes zero is sent as all ones. -1: the frame ends before.
 */
static __always_inline int translate4(struct frame_ctx *ctx, __u32 at, __u32 upper, __u32 addr, __u32 port, int in)
{
	void *ip = front(ctx) + (at & 0xff), *l4 = ip + IPV4_BYTES, *where = ip + (in ? 16 : 12);
	__u32 new_addr = __builtin_bswap32(addr), old_addr;
	__u16 new_port = __builtin_bswap16(port), old_port;
	__u64 ports;

	if (l4 + UDP_BYTES > behind(ctx))
		return -1;
	old_addr = *(__u32 *)where;
	if (upper == UPPER_ECHO)
		old_port = *(__u16 *)(l4 + 4);
	else
		old_port = *(__u16 *)(l4 + (in ? 2 : 0));
	if (old_addr == new_addr && old_port == new_port)
		return 0;
	ports = (__u64)(__u16)~old_port + new_port;
	*(__u32 *)where = new_addr;
	change_sum(ip + 10, (__u64)(__u32)~old_addr + new_addr);
	if (upper == UPPER_ECHO) {
		*(__u16 *)(l4 + 4) = new_port;
		change_sum(l4 + 2, ports);
		return 0;
	}
	*(__u16 *)(l4 + (in ? 2 : 0)) = new_port;
	at = (at & 0xff) + IPV4_BYTES + (upper == UPPER_TCP ? 16 : 6);
	return change_upper_sum(ctx, at, upper == UPPER_UDP, old_addr, new_addr, old_port, new_port);
}

#endif

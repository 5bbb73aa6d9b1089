/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Where packets leave the program: uplink ports, AF_XDP sockets, the event ring; and what the loader tells the program. */
#ifndef TUNNY_PORTS_H
#define TUNNY_PORTS_H

#include "memory.h"

/* Slots of ports: those of uplinks, then those of VM ports. */
#define TUNNY_PORT_SLOTS (TUNNY_PORTS_MAX + TUNNY_VM_PORTS_MAX)

/* Ports that packets leave by, by interface index, and the one by which tc's punts do. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, TUNNY_PORT_SLOTS + 1);
	__type(key, __u32);
	__type(value, __u32);
} tunny_ports SEC(".maps");

/* AF_XDP sockets of the software path: port slot * QUEUES_MAX + receive queue. */
#define TUNNY_QUEUES_MAX 64
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, TUNNY_PORT_SLOTS * TUNNY_QUEUES_MAX);
	__type(key, __u32);
	__type(value, __u32);
} tunny_xsks SEC(".maps");

/* Interface index of a port -> its slot. Only read for punts. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TUNNY_PORT_SLOTS);
	__type(key, __u32);
	__type(value, __u32);
} tunny_port_slots SEC(".maps");

/* Captured and sampled packets (struct tunny_event). */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} tunny_events SEC(".maps");

/* Checked by the loader against its own value and against that of the table memory. */
const volatile __u64 tunny_program_hash SEC(".rodata.abi") = TUNNY_PROGRAM_HASH;
/* Inode of the network namespace that the ports are in: the trace programs ignore others. Set by the loader. */
const volatile __u32 tunny_netns = 0;
/*
 * Not zero: what leaves by the port it came from is redirected to it instead of XDP_TX. Set by the loader for veth, which
 * wakes its peer after XDP_TX only if that has an XDP program of its own, after a redirect also if it has GRO.
 */
__u32 tunny_redirect_back SEC(".data.redirect") = 0;

#endif

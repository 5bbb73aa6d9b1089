/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What both drivers have: packets in memory, the program under test, and what user space tells and asks. */
#ifndef DRIVE_H
#define DRIVE_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define PACKET_SLOT 128

struct packet_slot {
	__u64 words[PACKET_SLOT / 8];
};

struct drive_state {
	__u64 next;
	__u64 packets;	/* a power of two */
	__u64 misses;	/* lookups of `bare` and `kernel_hash` that found nothing */
	__u64 buckets;
	__u64 salt;
	__u64 bytes;	/* of each packet, for drive_nat */
	__u64 lookups;	/* of `complex`, of which each waits for the one before */
	__u64 branches;	/* that depend on the packet */
	__u64 states;	/* lines of state that a packet changes */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drive_state);
} drive_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 20);
	__type(key, __u32);
	__type(value, struct packet_slot);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} under_test SEC(".maps");

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The provider edge: ports towards customers, and the exact table of their circuits. */
#ifndef TUNNY_CIRCUIT_H
#define TUNNY_CIRCUIT_H

#include "exact.h"

#define EDGE_PORTS TUNNY_EDGE_PORTS_MAX

/* Number of the edge port that an interface is, EDGE_PORTS if it is none. */
static __always_inline __u32 edge_port(const struct tunny_root *root, __u32 ifindex)
{
	for (__u32 i = 0; i < EDGE_PORTS; i++) {
		__u64 word = READ_ONCE(root->edge_ports[i]);

		if ((__u32)word == ifindex && (word & (TUNNY_EDGE_PORT_VALID | TUNNY_EDGE_PORT_ELSEWHERE)) == TUNNY_EDGE_PORT_VALID)
			return i;
	}
	return EDGE_PORTS;
}

/* The key of a circuit by VPC and line. */
static __always_inline __u64 circuit_by_vni(__u32 vni, __u32 line)
{
	return TUNNY_CIRCUIT_BY_VNI | (__u64)vni << 8 | line;
}

/* CIRCUIT word of a key, 0 if there is none; *value: what belongs to it. */
static __always_inline __u64 circuit_find(const struct tunny_root *root, __u64 key, __u64 *value)
{
	__u64 ref = READ_ONCE(root->circuits), word;
	__u32 buckets = ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT;
	const struct tunny_circuit_bucket *b;

	b = line_pair_at((__u32)ref + 2 * tunny_bucket_of(tunny_hash1(key, root->salt), buckets));
	if (!buckets || !b)
		return 0;
	for (__u32 i = 0; i < 8; i++) {
		word = READ_ONCE(b->words[i]);
		if ((word & (TUNNY_CIRCUIT_VALID | TUNNY_CIRCUIT_KEY_MASK)) == (TUNNY_CIRCUIT_VALID | key)) {
			*value = READ_ONCE(b->values[i]);
			return word;
		}
	}
	return 0;
}

/* What is kept of a MAC address that frames of a circuit come from; never 0. */
static __always_inline __u32 mac_mark(__u64 mac)
{
	__u32 mark = (mac ^ mac >> TUNNY_MAC_MARK_BITS) & ((1U << TUNNY_MAC_MARK_BITS) - 1);

	return mark ? mark : 1;
}

/* May frames of a circuit, by its tags, come from this MAC address? Global, so that its loop is verified once. */
__noinline int tunny_circuit_sender(__u32 tags, __u64 mac)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 value, word = root ? circuit_find(root, tags, &value) : 0;
	__u32 mark = word >> TUNNY_CIRCUIT_TAGS_SHIFT & ((1U << TUNNY_MAC_MARK_BITS) - 1);

	return !mark || mark == mac_mark(mac);
}

/* The MAC address in the value of a VM port's entry. */
#define VM_PORT_MAC ((1ULL << TUNNY_CIRCUIT_MTU_SHIFT) - 1)

/* The VM port that an interface is: the CIRCUIT word, which has the VNI, 0 if it is none; *value: the VM's MAC address, and the MTU. */
static __always_inline __u64 vm_port(const struct tunny_root *root, __u32 ifindex, __u64 *value)
{
	if (likely(!READ_ONCE(root->vm_ports)) || ifindex > TUNNY_CIRCUIT_IFINDEX_MASK)
		return 0;
	return circuit_find(root, TUNNY_CIRCUIT_VM_PORT | ifindex, value);
}

static __always_inline __u32 vm_port_vni(__u64 word)
{
	return word >> TUNNY_CIRCUIT_TAGS_SHIFT & 0xffffff;
}

/* The port of the VM with a MAC address in a VPC: interface, and the MTU at 32. 0: there is none. Global, so that its loop is verified once. */
__noinline __u64 tunny_vm_port_of(__u32 vni, __u64 mac)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 ref = root ? READ_ONCE(root->circuits) : 0, word, value;
	__u32 buckets = ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT;
	const struct tunny_circuit_bucket *b;

	if (!root || !buckets)
		return 0;
	b = line_pair_at((__u32)ref + 2 * tunny_bucket_of(tunny_hash1((__u64)vni << 40 ^ mac, root->salt), buckets));
	for (__u32 i = 0; b && i < 8; i++) {
		word = READ_ONCE(b->words[i]);
		value = READ_ONCE(b->values[i]);
		if ((word & ~(__u64)TUNNY_CIRCUIT_IFINDEX_MASK) ==
			    (TUNNY_CIRCUIT_VALID | TUNNY_CIRCUIT_VM_MAC | (__u64)vni << TUNNY_CIRCUIT_TAGS_SHIFT) &&
		    (value & VM_PORT_MAC) == mac)
			return (value >> TUNNY_CIRCUIT_MTU_SHIFT) << 32 | (word & TUNNY_CIRCUIT_IFINDEX_MASK);
	}
	return 0;
}

/*
 * What belongs to a circuit by its tags: the VNI, and the gateway's address at CIRCUIT_GATEWAY_SHIFT. Global, so that its loops are verified
 * once. DROP_*: there is none; else DROP_REASONS_MAX + that.
 */
__noinline __u64 tunny_circuit_vpc(__u32 tags)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	__u64 vni = 0;

	if (!root)
		return DROP_TABLE_FAULT;
	if (circuit_find(root, tags, &vni) && vni)
		return TUNNY_DROP_REASONS_MAX + vni;
	return circuit_find(root, tags | TUNNY_CIRCUIT_CUSTOMER, &vni) ? DROP_EDGE_OVERLAY_UNKNOWN : DROP_EDGE_CUSTOMER_UNKNOWN;
}

#endif

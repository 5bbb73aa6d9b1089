/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* meter: two-rate three-color meters of the ingress VPC and of the destination VM. */
#ifndef TUNNY_METER_STAGE_H
#define TUNNY_METER_STAGE_H

#include "../connection/packet.h"
#include "../tables/meter.h"

/* The meter of a VPC, for what it sends. */
static __always_inline int meter_vpc(const struct tunny_root *root, __u64 tenant_key, __u32 bytes, __u32 packets)
{
	__u32 line = tenant_meter(root, tenant_key);

	return line && tunny_meter(line, amount(bytes, packets), time_ns()) == RED ? DROP_METER_VPC : GO;
}

/* The meter of a VM that has one, for what it gets. */
static __always_inline int meter_vm(const struct tunny_root *root, __u32 vm, __u32 bytes, __u32 packets)
{
	__u32 line = word_lookup(root->vm_meters, root->salt, vm, TUNNY_WORD_METER_SHIFT);

	return line && tunny_meter(line, amount(bytes, packets), time_ns()) == RED ? DROP_METER_VM : GO;
}

/* Bytes of inner frames that a meter is asked for. */
static __always_inline __u32 inner_bytes_of(const struct flow *w)
{
	return bytes_in(&w->segments, w->inner_bytes, 0);
}

static __always_inline int meter(struct packet *p)
{
	__u32 bytes = bytes_in(&p->end->segments, p->end->inner_bytes, 0), packets = packets_in(&p->end->segments);

	if (meter_vpc(p->root, p->tenant_key, bytes, packets))
		return DROP_METER_VPC;
	return unlikely(p->vm.flags & TUNNY_VM_FLAG_METERED) ? meter_vm(p->root, p->vm.id, bytes, packets) : GO;
}

#endif

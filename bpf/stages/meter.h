/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* meter: two-rate three-color meters of the ingress VPC and of the destination VM. */
#ifndef TUNNY_METER_STAGE_H
#define TUNNY_METER_STAGE_H

#include "../packet.h"
#include "../tables/meter.h"

/* The meter of a VPC, for what it sends. */
static __always_inline int meter_vpc(const struct tunny_root *root, __u64 tenant_key, __u32 bytes)
{
	__u32 line = tenant_meter(root, tenant_key);

	return line && tunny_meter(line, bytes, time_ns()) == RED ? DROP_METER_VPC : GO;
}

/* The meter of a VM that has one, for what it gets. */
static __always_inline int meter_vm(const struct tunny_root *root, __u32 vm, __u32 bytes)
{
	__u32 line = word_lookup(root->vm_meters, root->salt, vm, TUNNY_WORD_METER_SHIFT);

	return line && tunny_meter(line, bytes, time_ns()) == RED ? DROP_METER_VM : GO;
}

static __always_inline int meter(struct packet *p)
{
	if (meter_vpc(p->root, p->tenant_key, p->end->inner_bytes))
		return DROP_METER_VPC;
	return unlikely(p->vm.flags & TUNNY_VM_FLAG_METERED) ? meter_vm(p->root, p->vm.id, p->end->inner_bytes) : GO;
}

#endif

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Framing vmport: a plain Ethernet frame of a VM of this node, on a port of its own. The port names the VPC and the VM. The order of checks is
 * docs/design/vswitch.md.
 */
#ifndef TUNNY_VMPORT_H
#define TUNNY_VMPORT_H

#include "qinq.h"
#include "../tables/nc.h"

#define DHCP_SERVER_PORT 67
#define DHCP6_SERVER_PORT 547

/* The frame of a VM: fills the VPC and who it is. `word`, `mac`: what is known of the port. GO or a verdict. */
static __always_inline int vmport_decapsulate(struct packet *p, struct end *e, __u64 word, __u64 mac)
{
	void *data = front(p->ctx);

	if (data + ETH_BYTES > behind(p->ctx))
		return short_of(p, ETH_BYTES, DROP_OUTER_TRUNCATED);
	mac &= VM_PORT_MAC;
	if ((load_be64(data + 4) & ((1ULL << 48) - 1)) != mac)
		return DROP_VM_PORT_MAC;
	p->vni = vm_port_vni(word);
	/* Nothing is around the packet that could say anything else than it says itself. */
	p->outer_tos = 0;
	p->sender_lo = 0;
	/* All of it, in however many buffers. */
	frame_holds(p, 0xffffffff);
	p->inner_at = 0;
	p->inner_bytes = p->bytes > FRAME_MAX ? FRAME_MAX : p->bytes;
	p->bytes = p->inner_bytes;
	e->edge = 1;
	e->guest = mac;
	e->vni = p->vni;
	e->inner_bytes = p->inner_bytes;
	switch (tunny_offload(p->ctx)) {
	case OFFLOAD_PLAIN:
		break;
	case OFFLOAD_STRANGE:
		return PUNT + PUNT_OFFLOADED;
	default:
		return DROP_INNER_IP_MALFORMED;
	}
	count_segments(p->ctx, p->stats, e, 0);
	return GO;
}

/*
 * Looks up who sends a packet, whose inner frame is at `at`. By a VM port a VM sends from its own addresses alone: the source's entry in the VPC is
 * that of the port's VM. A VM that is shaped sends by the software path. GO or a verdict. Global, verified once.
 */
__noinline int tunny_sender(struct frame_ctx *ctx, const struct end *e, __u64 roots, __u32 v6, __u32 at)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct walk *w = map_value(&tunny_walks, 0);
	void *ip = front(ctx) + (at & 0xff) + ETH_BYTES;

	if (!e || !root || !w)
		return DROP_TABLE_FAULT;
	if (v6) {
		if (ip + IPV6_BYTES > behind(ctx))
			return DROP_VM_PORT_SOURCE;
		walk_to(w, e->vni, 1, load_be64(ip + 8), load_be64(ip + 16));
	} else {
		if (ip + IPV4_BYTES > behind(ctx))
			return DROP_VM_PORT_SOURCE;
		walk_to(w, e->vni, 0, 0, load_be32(ip + 12));
	}
	w->roots = roots;
	w->found = find_vm(root, w);
	if (e->guest && (!w->found || w->vm.flags & TUNNY_VM_FLAG_GATEWAY || w->vm.mac != e->guest))
		return DROP_VM_PORT_SOURCE;
	return w->found && w->vm.flags & TUNNY_VM_FLAG_SHAPED && !tunny_probes.only ? PUNT + PUNT_SHAPED : GO;
}

/* What a frame of a VM for everybody, or for many, comes to, which is dropped as `end` if it is for no DHCP server. Its IP header lies in the first buffer. */
static __always_inline int for_dhcp(struct frame_ctx *ctx, int v6, int end)
{
	void *ip = front(ctx) + ETH_BYTES, *ports = ip + (v6 ? IPV6_BYTES : IPV4_BYTES);
	__u32 port = v6 ? DHCP6_SERVER_PORT : DHCP_SERVER_PORT;

	if (ports > behind(ctx))
		return end;
	if (v6) {
		if (*(__u8 *)(ip + 6) != IPPROTO_UDP || load_be16(ip + 4) < 4 || load_be64(ip + 24) != 0xff02ULL << 48 ||
		    load_be64(ip + 32) != 0x10002)
			return end;
	} else if (*(__u8 *)ip != 0x45 || *(__u8 *)(ip + 9) != IPPROTO_UDP || load_be16(ip + 6) & (IP_MF | IP_OFFSET)) {
		return end;
	}
	if (ports + 4 > behind(ctx))
		return buffers_bytes(ctx) < ETH_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + 4 ? end : PUNT + PUNT_NONLINEAR_HEADERS;
	return load_be16(ports + 2) == port ? PUNT + PUNT_VM_DHCP : end;
}

#define NEAR_NONE (1ULL << 63)

/*
 * The port of a destination whose NC is this node: interface, and the MTU at 32. NEAR_NONE: it has none. 0: the NC is another node.
 */
__noinline __u64 tunny_near(__u32 vni, __u64 mac, __u32 nc)
{
	const struct tunny_root *root = map_value(&tunny_root, 0);
	struct tunny_nc_record *record;
	__u64 word, port;

	if (!root || !READ_ONCE(root->vm_ports))
		return 0;
	word = nc_word(root, nc);
	if (!(word & TUNNY_NC_VALID))
		return 0;
	if (word & TUNNY_NC_V6) {
		record = nc_record(root, nc);
		if (!record || record->addr_hi != root->vtep6_hi || record->addr_lo != root->vtep6_lo)
			return 0;
	} else if (word >> 32 != root->vtep4) {
		return 0;
	}
	port = tunny_vm_port_of(vni, mac);
	return port ? port : NEAR_NONE;
}

#endif

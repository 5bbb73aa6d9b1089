/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Counts packets that the fast path had sent on and that the driver then did not take: XDP learns of that only through
 * trace points. Such a packet was counted as forwarded; here its outcome is corrected to the drop reason tx_failed, so
 * that the sum of outcomes stays the number of packets (its bytes stay in forwarded_bytes).
 *
 * The trace points see every device of the machine. Ours are known by their ports and network namespace. They fire in
 * the same softirq on the same CPU as the program, so the slot of the CPU is theirs to write.
 */
#include "tables/counter.h"
#include "tables/ports.h"
#include <bpf/bpf_tracing.h>

struct bpf_prog;
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};
struct net {
	struct ns_common ns;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct net_device {
	int ifindex;
	possible_net_t nd_net;
};
#pragma clang attribute pop

static __always_inline int ours(const struct net_device *dev)
{
	__u32 ifindex = dev->ifindex;

	return dev->nd_net.net->ns.inum == tunny_netns && map_value(&tunny_port_slots, ifindex);
}

static __always_inline int failed(const struct net_device *dev, int packets)
{
	__u32 slot = cpu_number();
	struct tunny_stats *stats;

	if (packets <= 0 || !ours(dev))
		return 0;
	stats = map_value(&tunny_stats, slot);
	if (!stats)
		return 0;
	stats->forwarded -= packets;
	stats->dropped += packets;
	stats->drops[DROP_TX_FAILED] += packets;
	return 0;
}

/* A bulk towards another port. */
SEC("tp_btf/xdp_devmap_xmit")
int BPF_PROG(tunny_tx_port, const struct net_device *from, const struct net_device *to, int sent, int drops, int err)
{
	return failed(from, drops);
}

/* A bulk back out of the port it came from (veth, virtio). */
SEC("tp_btf/xdp_bulk_tx")
int BPF_PROG(tunny_tx_back, const struct net_device *dev, int sent, int drops, int err)
{
	return failed(dev, drops);
}

/* One packet back out of the port it came from. Drivers that report failed redirects here too are left to the next. */
SEC("tp_btf/xdp_exception")
int BPF_PROG(tunny_tx_exception, const struct net_device *dev, const struct bpf_prog *program, __u32 action)
{
	return action == XDP_TX ? failed(dev, 1) : 0;
}

/* One packet towards another port that could not even be queued. A full AF_XDP ring is counted by its socket. */
SEC("tp_btf/xdp_redirect_err")
int BPF_PROG(tunny_tx_redirect, const struct net_device *dev, const struct bpf_prog *program, const void *target, int err,
	     __u32 map_type)
{
	return map_type == BPF_MAP_TYPE_XSKMAP ? 0 : failed(dev, 1);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

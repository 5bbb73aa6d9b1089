/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A customer's router (CE) as far as its line goes: frames from the site get two tags, frames of the line lose them. For tc, on the
 * ingress of both ports of a namespace that has no other use, whose numbers are fixed. This kernel may know no VLAN devices.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Numbers of the interfaces, and the tags: crates/lab/src/sites.rs has them, too. */
#define LAN 100
#define LINE 101
#define CUSTOMER 100
#define OVERLAY 7
#define VID_MASK 0xfff

SEC("lan")
int from_site(struct __sk_buff *skb)
{
	if (bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021Q), OVERLAY) ||
	    bpf_skb_vlan_push(skb, bpf_htons(ETH_P_8021AD), CUSTOMER))
		return TC_ACT_SHOT;
	return bpf_redirect(LINE, 0);
}

SEC("line")
int from_line(struct __sk_buff *skb)
{
	/* The kernel has taken the outer tag off; when that one is gone, it takes the next. */
	if (!skb->vlan_present || skb->vlan_proto != bpf_htons(ETH_P_8021AD) ||
	    (skb->vlan_tci & VID_MASK) != CUSTOMER || bpf_skb_vlan_pop(skb))
		return TC_ACT_SHOT;
	if (!skb->vlan_present || skb->vlan_proto != bpf_htons(ETH_P_8021Q) ||
	    (skb->vlan_tci & VID_MASK) != OVERLAY || bpf_skb_vlan_pop(skb))
		return TC_ACT_SHOT;
	return bpf_redirect(LAN, 0);
}

char _license[] SEC("license") = "GPL";

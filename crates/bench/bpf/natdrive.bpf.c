/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * As `drive` in driver.bpf.c, for a program that makes frames shorter or longer: a test run does not put the frame back between
 * two runs, so this does, and copies the next packet over it.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#define PACKET_SLOT 128
/* The shortest packet that is driven; it is copied in whole words. */
#define LEAST 64

struct packet_slot {
	__u64 words[PACKET_SLOT / 8];
};

struct natdrive_state {
	__u64 next;
	__u64 packets; /* a power of two */
	__u64 bytes;   /* of each */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct natdrive_state);
} natdrive_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1 << 20);
	__type(key, __u32);
	__type(value, struct packet_slot);
} natdrive_packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} natdrive_program SEC(".maps");

SEC("xdp.frags")
int drive_nat(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct natdrive_state *s = bpf_map_lookup_elem(&natdrive_states, &zero);
	int longer;
	__u64 *data;

	if (!s)
		return XDP_ABORTED;
	longer = (int)(ctx->data_end - ctx->data) - (int)s->bytes;
	if (longer && bpf_xdp_adjust_head(ctx, longer))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	__u32 index = s->next++ & (s->packets - 1);
	struct packet_slot *p = bpf_map_lookup_elem(&natdrive_packets, &index);

	if (!p || (void *)(data + LEAST / 8) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < LEAST / 8; i++)
		data[i] = p->words[i];
	if ((void *)(data + 14) <= (void *)(long)ctx->data_end) {
#pragma unroll
		for (int i = LEAST / 8; i < 14; i++)
			data[i] = p->words[i];
	}
	bpf_tail_call(ctx, &natdrive_program, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int nat_nothing(struct xdp_md *ctx)
{
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";

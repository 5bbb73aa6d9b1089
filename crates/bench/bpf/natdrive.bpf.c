/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * As `drive` in driver.bpf.c, for a program that makes frames shorter or longer: a test run does not put the frame back between
 * two runs, so this does, and copies the next packet over it.
 */
#include "drive.h"

/* The shortest packet that is driven; it is copied in whole words. */
#define LEAST 64

SEC("xdp.frags")
int drive_nat(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	int longer;
	__u64 *data;

	if (!s)
		return XDP_ABORTED;
	longer = (int)(ctx->data_end - ctx->data) - (int)s->bytes;
	if (longer && bpf_xdp_adjust_head(ctx, longer))
		return XDP_ABORTED;
	data = (void *)(long)ctx->data;
	__u32 index = s->next++ & (s->packets - 1);
	struct packet_slot *p = bpf_map_lookup_elem(&packets, &index);

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
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int nat_nothing(struct xdp_md *ctx)
{
	return XDP_TX;
}

char _license[] SEC("license") = "Dual BSD/GPL";

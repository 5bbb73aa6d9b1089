/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Looks up the state of the key in the packet: six words, whether it is wide, kind. Writes state and verdict behind it. For tests/states.rs. */
#include "../../../bpf/states/states.h"

SEC("xdp")
int states(struct xdp_md *ctx)
{
	__u64 *in = (void *)(long)ctx->data, *out = in + 8;
	struct state_key k = {};

	if ((void *)(out + 2) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	for (int i = 0; i < 6; i++)
		k.w[i] = in[i];
	k.wide = in[6];
	out[0] = tunny_state(&k);
	out[1] = states_judge(out[0], in[7]);
	return XDP_PASS;
}

/* The kind of a TCP packet with the flags in its first byte. */
SEC("xdp")
int kinds(struct xdp_md *ctx)
{
	__u8 *in = (void *)(long)ctx->data;

	if ((void *)(in + 1) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	return states_kind(*in);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The C hash functions on the words of a packet; the results are written behind them. For tests/agree.rs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "../../../bpf/include/abi.h"

SEC("xdp")
int hashes(struct xdp_md *ctx)
{
	__u64 *in = (void *)(long)ctx->data, *out = in + 6;

	if ((void *)(out + 10) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	out[0] = tunny_hash1(in[0], in[1]);
	out[1] = tunny_hash3(in[0], in[1], in[2], in[3]);
	out[2] = tunny_bucket_of(in[0], in[1]);
	out[3] = tunny_flow_hash_v4(in[0], in[1], in[4], in[5]);
	out[4] = tunny_flow_hash_v6(in[0], in[1], in[2], in[3], in[4], in[5]);
	out[5] = tunny_source_port(in[0]);
	out[6] = tunny_flow_label(in[0]);
	out[7] = tunny_version_of_vpc(in[0], in[1]);
	out[8] = tunny_version_of_v4(in[0], in[2], in[1]);
	out[9] = tunny_version_of_v6(in[0], in[2], in[3], in[1]);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

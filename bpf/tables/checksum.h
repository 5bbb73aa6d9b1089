/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Internet checksums: IPv4 headers by adding words, UDP by chunks through a scratch buffer (all buffers of a frame). */
#ifndef TUNNY_CHECKSUM_H
#define TUNNY_CHECKSUM_H

#include "memory.h"

#define CHUNK_BYTES 1024

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u8[CHUNK_BYTES + 8]);
} tunny_scratch SEC(".maps");

static __always_inline __u32 fold(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/*
 * Whether the checksum of a 20-byte IPv4 header is right: its sum is a multiple of 0xffff. Five words of 32 bits fold
 * twice to at most 0x10007, where 0xffff is the only multiple.
 */
static __always_inline int ipv4_checks(const void *header)
{
	const __u32 *w = header;
	__u64 sum = (__u64)w[0] + w[1] + w[2] + w[3] + w[4];

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/*
 * Folded sum of `bytes` bytes from offset `at` of the frame plus `sum`, in network byte order. A negative value: they
 * are not all there. Reads through bpf_xdp_load_bytes, so that it does not matter in which buffer they are.
 */
__noinline int tunny_sum(struct xdp_md *ctx, __u32 at, __u32 bytes, __u64 sum)
{
	__u32 zero = 0;
	__u8 *scratch = bpf_map_lookup_elem(&tunny_scratch, &zero);

	if (!scratch || bytes > TUNNY_FRAME_BYTES_MAX)
		return -1;
	for (int i = 0; i <= TUNNY_FRAME_BYTES_MAX / CHUNK_BYTES && bytes >= CHUNK_BYTES; i++) {
		if (bpf_xdp_load_bytes(ctx, at, scratch, CHUNK_BYTES) < 0)
			return -1;
		sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)scratch, 512, 0);
		sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)(scratch + 512), 512, 0);
		at += CHUNK_BYTES;
		bytes -= CHUNK_BYTES;
	}
	bytes &= CHUNK_BYTES - 1;
	if (bytes) {
		*(__u64 *)(scratch + (bytes & (CHUNK_BYTES - 4))) = 0;
		if (bpf_xdp_load_bytes(ctx, at, scratch, bytes) < 0)
			return -1;
		if (bytes > 512) {
			sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)scratch, 512, 0);
			scratch += 512;
			bytes -= 512;
		}
		sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)scratch, (bytes + 3) & 0x3fc, 0);
	}
	return fold(sum);
}

#endif

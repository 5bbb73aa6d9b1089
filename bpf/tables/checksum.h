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

/* Adds `bytes` (a constant, at least 8) bytes as words of 32 bits: two sums that do not wait for each other. */
#define ADD_WORDS(at, bytes, a, b)                                 \
	do {                                                       \
		_Pragma("unroll") for (int w = 0; w < (bytes) / 4; w += 2) { \
			(a) += ((const __u32 *)(at))[w];           \
			(b) += ((const __u32 *)(at))[w + 1];       \
		}                                                  \
	} while (0)

/* The sum of bytes that may lie in any buffer of the frame, through a scratch buffer. -1: they are not all there. */
__noinline __s64 tunny_sum_copied(struct frame_ctx *ctx, __u32 at, __u32 bytes)
{
	__u8 *scratch = map_value(&tunny_scratch, 0);
	__u64 sum = 0;

	if (!scratch)
		return -1;
	for (int i = 0; i <= TUNNY_FRAME_BYTES_MAX / CHUNK_BYTES && bytes >= CHUNK_BYTES; i++) {
		if (copy_out(ctx, at, scratch, CHUNK_BYTES) < 0)
			return -1;
		sum += sum_words(scratch, 512);
		sum += sum_words(scratch + 512, 512);
		at += CHUNK_BYTES;
		bytes -= CHUNK_BYTES;
	}
	if (bytes) {
		/* Says 1 to 1024 in a form that the verifier of 6.1 understands, too. */
		bytes -= 1;
		OPAQUE(bytes);
		bytes = (bytes & (CHUNK_BYTES - 1)) + 1;
		*(__u32 *)(scratch + (bytes - 1 & (CHUNK_BYTES - 4))) = 0;
		if (copy_out(ctx, at, scratch, bytes) < 0)
			return -1;
		if (bytes > 512) {
			sum += sum_words(scratch, 512);
			scratch += 512;
			bytes -= 512;
		}
		sum += sum_words(scratch, (bytes + 3) & 0x3fc);
	}
	return sum;
}

/*
 * Folded sum of `bytes` bytes from offset `at` of the frame plus `sum`, in network byte order. A negative value: they
 * are not all there. What lies in the first buffer is added in place, 64 bytes a round; the rest is copied.
 */
__noinline int tunny_sum(struct frame_ctx *ctx, __u32 at, __u32 bytes, __u64 sum)
{
	void *p = data_of(ctx), *end = end_of(ctx);
	__u64 other = 0;
	__s64 rest;

	if (bytes > TUNNY_FRAME_BYTES_MAX || at > 0x3fff)
		return -1;
	p += at;
	for (int i = 0; i < TUNNY_FRAME_BYTES_MAX / 64 && bytes >= 64; i++) {
		if (p + 64 > end)
			break;
		ADD_WORDS(p, 64, sum, other);
		p += 64;
		at += 64;
		bytes -= 64;
	}
	sum += other;
	/* One state for the verifier, wherever the loop ended. */
	OPAQUE(at);
	OPAQUE(bytes);
	if (at > 0x3fff)
		return -1;
	p = data_of(ctx) + at;
	end = end_of(ctx);
	/* At most 15 words and 3 bytes, if this is the first buffer's end, too. */
	for (int i = 0; i < 15 && bytes >= 4 && bytes < 64; i++) {
		if (p + 4 > end)
			break;
		sum += *(__u32 *)p;
		p += 4;
		at += 4;
		bytes -= 4;
	}
	if (bytes == 1 && p + 1 <= end)
		return fold(sum + *(__u8 *)p);
	if (bytes == 2 && p + 2 <= end)
		return fold(sum + *(__u16 *)p);
	if (bytes == 3 && p + 3 <= end)
		return fold(sum + *(__u16 *)p + *(__u8 *)(p + 2));
	if (!bytes)
		return fold(sum);
	rest = tunny_sum_copied(ctx, at, bytes);
	return rest < 0 ? -1 : fold(sum + rest);
}

#endif

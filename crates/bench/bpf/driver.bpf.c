/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Drives a program under test with packets from memory: `drive` copies the next packet over the frame and tail-calls the
 * program. `nothing` measures the driver itself; `bare` is the comparison: the least parse and one lookup in a table of
 * cache-line buckets with as many bytes as the gateway's tables; `kernel_hash` is the same with the kernel's hash map.
 */
#include "drive.h"
#include <bpf/bpf_endian.h>
#include "abi.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tunny_vm4_bucket);
} bare_table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} kernel_table SEC(".maps");

SEC("xdp.frags")
int drive(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	__u64 *data = (void *)(long)ctx->data;

	if (!s || (void *)(data + 14) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	__u32 index = s->next++ & (s->packets - 1);
	struct packet_slot *p = bpf_map_lookup_elem(&packets, &index);

	if (!p)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < 14; i++)
		data[i] = p->words[i];
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

/* The same with frames of `bytes` bytes, 72 or more: the program may make them longer or shorter, so each begins with its own length. */
SEC("xdp.frags")
int drive_sized(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	__u64 *data;

	if (!s || bpf_xdp_adjust_head(ctx, (int)bpf_xdp_get_buff_len(ctx) - (int)s->bytes))
		return XDP_ABORTED;
	__u32 index = s->next++ & (s->packets - 1);
	struct packet_slot *p = bpf_map_lookup_elem(&packets, &index);

	data = (void *)(long)ctx->data;
	if (!p || (void *)(data + 9) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < 9; i++)
		data[i] = p->words[i];
	if ((void *)(data + 14) <= (void *)(long)ctx->data_end) {
#pragma unroll
		for (int i = 9; i < 14; i++)
			data[i] = p->words[i];
	}
	bpf_tail_call(ctx, &under_test, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int nothing(struct xdp_md *ctx)
{
	return XDP_TX;
}

#define OUTER 50
#define INNER_IP (OUTER + 14)

/* The least that finds an inner IPv4 destination: outer IPv4 without options, UDP, VXLAN. Returns 0 if it is none. */
static __always_inline __u64 bare_key(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	__u32 vni, dst;

	if (data + INNER_IP + 28 > (__u8 *)(long)ctx->data_end)
		return 0;
	if (*(__u16 *)(data + 12) != bpf_htons(0x0800) || data[14] != 0x45 || data[23] != 17)
		return 0;
	if (*(__u16 *)(data + 36) != bpf_htons(4789) || *(__u16 *)(data + OUTER + 12) != bpf_htons(0x0800))
		return 0;
	vni = bpf_ntohl(*(__u32 *)(data + 46)) >> 8;
	dst = bpf_ntohl(*(__u32 *)(data + INNER_IP + 16));
	return (__u64)vni << TUNNY_VM4_VNI_SHIFT | (__u64)dst << TUNNY_VM4_ADDR_SHIFT | TUNNY_KEY_VALID;
}

/* What any gateway writes at least: the MAC addresses and the outer destination. */
static __always_inline int bare_write(struct xdp_md *ctx, __u32 a, __u32 b)
{
	__u8 *data = (void *)(long)ctx->data;

	if (data + INNER_IP + 28 > (__u8 *)(long)ctx->data_end)
		return XDP_ABORTED;
	*(__u32 *)(data + OUTER) = a;
	*(__u16 *)(data + OUTER + 4) = b;
	*(__u32 *)(data + 30) = b;
	return XDP_TX;
}

SEC("xdp.frags")
int bare(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	__u64 key = bare_key(ctx);

	if (!s || !key)
		return XDP_ABORTED;
	__u32 index = tunny_bucket_of(tunny_hash1(key, s->salt), s->buckets);
	struct tunny_vm4_bucket *b = bpf_map_lookup_elem(&bare_table, &index);

	if (!b)
		return XDP_ABORTED;
	if (b->keys[0] == key)
		return bare_write(ctx, b->values[0], b->values[1]);
	if (b->keys[1] == key)
		return bare_write(ctx, b->values[3], b->values[4]);
	if (b->keys[2] == key)
		return bare_write(ctx, b->values[6], b->values[7]);
	s->misses++;
	return XDP_ABORTED;
}

SEC("xdp.frags")
int kernel_hash(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	__u64 key = bare_key(ctx);

	if (!s || !key)
		return XDP_ABORTED;
	__u64 *value = bpf_map_lookup_elem(&kernel_table, &key);

	if (!value) {
		s->misses++;
		return XDP_ABORTED;
	}
	return bare_write(ctx, *value, *value >> 32);
}

struct line {
	__u64 words[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct line);
} lookup_table SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct line);
} state_table SEC(".maps");

static __always_inline struct line *line_in(void *table, __u64 hash, const struct drive_state *s)
{
	__u32 index = tunny_bucket_of(hash, s->buckets);

	return bpf_map_lookup_elem(table, &index);
}

#define LOOKUPS_MAX 12
#define BRANCHES_MAX 64
#define STATES_MAX 8

/*
 * A program of so many lookups, branches and lines of state; crates/bench/src/complexity.rs has the same in Rust. A lookup is the read of one line
 * among `buckets`, whose number comes from the line before. A branch goes either way by a bit of the packet. State is a line of its flow.
 */
SEC("xdp.frags")
int complex(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct drive_state *s = bpf_map_lookup_elem(&drive_states, &zero);
	__u64 key = bare_key(ctx), hash, bits;

	if (!s || !key)
		return XDP_ABORTED;
	hash = tunny_hash1(key, s->salt);
	for (int i = 0; i < LOOKUPS_MAX && i < s->lookups; i++) {
		struct line *line = line_in(&lookup_table, hash, s);

		if (!line)
			return XDP_ABORTED;
		hash = tunny_hash1(line->words[0] ^ key, s->salt + 1 + i);
	}
	bits = tunny_hash1(key ^ hash, s->salt);
	for (int i = 0; i < BRANCHES_MAX && i < s->branches; i++) {
		/* What is opaque to the compiler keeps both ways apart. */
		if (bits >> i & 1) {
			hash += 0x9e37;
			asm volatile("" : "+r"(hash));
		} else {
			hash ^= hash >> 7;
			asm volatile("" : "+r"(hash));
		}
	}
	for (int i = 0; i < STATES_MAX && i < s->states; i++) {
		struct line *line = line_in(&state_table, tunny_hash1(key, s->salt + 64 + i), s);

		if (!line)
			return XDP_ABORTED;
		line->words[0]++;
		line->words[1] += ctx->data_end - ctx->data;
		line->words[2] = hash;
	}
	return bare_write(ctx, hash, hash >> 32);
}

char _license[] SEC("license") = "Dual BSD/GPL";

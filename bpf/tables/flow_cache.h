/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The flow cache of a CPU, and the versions that say whether a line of it is valid: crate abi, flow_cache.rs. XDP never interrupts itself
 * on a CPU, so a CPU's lines have one reader and writer and need no order among their words.
 */
#ifndef TUNNY_FLOW_CACHE_H
#define TUNNY_FLOW_CACHE_H

#include "memory.h"

/*
 * Chunks of each CPU, 0: no cache; the salt of their places; whether every packet looks there, however few find something. Constants of the
 * loaded program: without a cache its code is gone.
 */
const volatile struct {
	__u32 chunks;
	__u32 cpus;
	__u64 salt;
	__u32 always;
	__u32 pad;
} tunny_flow SEC(".rodata.flow") = {};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct {
		__uint(type, BPF_MAP_TYPE_ARRAY);
		__uint(max_entries, 1);
		__uint(key_size, sizeof(__u32));
		__uint(value_size, TUNNY_FLOW_CHUNK_BYTES);
	});
} tunny_flow_cache SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, TUNNY_FLOW_VERSIONS);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} tunny_flow_versions SEC(".maps");

/* What is known of a packet that is left to the stages; and how well the CPU's cache does. */
struct flow_miss {
	__u64 place;		/* hash of its key, 0: it is nothing for the cache */
	__u64 addresses;	/* first word of its key */
	__u64 rest;		/* second word of its key */
	__u64 versions;		/* read before any table */
	__u64 more;		/* versions of a session's VM, read before any table is asked for it */
	__u64 circuit;		/* what the table of circuits said of a customer's tags, before the versions were read */
	struct tunny_flow_line line;	/* what the stages decided */
	__u32 ready;		/* they did, and it may be noted once the packet is sent */
	__u32 hits;		/* of this window: packets that the cache sent on, and lookups that found no line */
	__u32 wasted;
	__u32 sparse;		/* the last window had few hits: most packets go past the cache */
	__u32 turn;
	__u32 edge;		/* FLOW_EDGE and port of a customer's frame; 0: it came otherwise */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow_miss);
} tunny_flow_misses SEC(".maps");

/* Whether this packet goes past the cache, because too few that look there find something. */
static __always_inline int flow_passes_by(struct flow_miss *miss)
{
	if (likely(!miss->sparse) || tunny_flow.always)
		return 0;
	/* Which ones look must not keep step with what comes. */
	miss->turn = miss->turn * 1664525 + 1013904223;
	return miss->turn >> 16 & (TUNNY_FLOW_SPARSE_ONE_IN - 1);
}

/* A lookup has found no line of the flow. Ends the window if it is full. */
static __always_inline void flow_wasted(struct flow_miss *miss)
{
	__u64 hits = miss->hits, all = hits + ++miss->wasted;

	if (likely(all < TUNNY_FLOW_WINDOW))
		return;
	/* Who looks in vain pays half of what who finds something saves. Once it is sparse it takes more to return. */
	miss->sparse = miss->sparse ? hits * 2 < all : hits * 8 < all * 3;
	miss->hits = 0;
	miss->wasted = 0;
}

/* Hash of a flow's key, which says its places: abi, flow_cache.rs. */
static __always_inline __u64 flow_place(__u64 addresses, __u64 rest)
{
	__u64 x = (addresses ^ tunny_flow.salt) * TUNNY_HASH_MUL_A;

	x ^= x >> 32;
	x = (x ^ rest) * TUNNY_HASH_MUL_B;
	return x ^ x >> 29;
}

/* Bytes in front of a chunk's first pair of lines: the kernel puts its header there, whose end need not be a multiple of 128. */
static __always_inline __u32 flow_chunk_skip(void)
{
	return -value_offset() & 127;
}

/* The lines of a chunk of a CPU's cache. NULL: there is none. */
static __always_inline struct tunny_flow_line *flow_chunk(__u32 cpu, __u32 number)
{
	void *chunk = map_value(&tunny_flow_cache, cpu * tunny_flow.chunks + number);

	if (!chunk)
		return NULL;
	chunk = map_value(chunk, 0);
	return chunk ? chunk + flow_chunk_skip() : NULL;
}

/* The two places of a flow in a CPU's cache. NULL: there are none. */
static __always_inline struct tunny_flow_line *flow_pair(__u32 cpu, __u64 hash)
{
	struct tunny_flow_line *lines = flow_chunk(cpu, tunny_bucket_of(hash, tunny_flow.chunks));
	__u32 pair = tunny_bucket_of(hash << 32, TUNNY_FLOW_CHUNK_LINES / 2);

	if (!lines)
		return NULL;
	OPAQUE(pair);
	if (pair >= TUNNY_FLOW_CHUNK_LINES / 2)
		return NULL;
	return lines + 2 * pair;
}

/*
 * Which of its two places a flow probably has: the second only if its second word stands there and not in the first. That is computed and not
 * branched on: both lines come from memory at once, and a branch guessed wrongly would throw away what the processor has done meanwhile.
 */
static __always_inline __u32 flow_probable(const struct tunny_flow_line *pair, __u64 rest)
{
	__u64 first = READ_ONCE(pair[0].rest) ^ rest, second = READ_ONCE(pair[1].rest) ^ rest;
	__u32 at = (first | -first) >> 63 & ~((second | -second) >> 63);

	OPAQUE(at);
	return at & 1;
}

/* Leaves to the stages what a flow that was not found is noted by, if they send it on. */
static __always_inline void flow_missed(struct flow_miss *miss, __u64 hash, __u64 addresses, __u64 rest, __u64 versions)
{
	miss->place = hash;
	miss->addresses = addresses;
	miss->rest = rest;
	miss->versions = versions;
}

/* Whether what a line says goes to a customer. */
static __always_inline int flow_to_line(const struct tunny_flow_line *line)
{
	return !(line->nexthop & TUNNY_ROOT_LINE_MASK);
}

static __always_inline __u32 flow_kind(const struct tunny_flow_line *line)
{
	return line->nexthop >> TUNNY_FLOW_KIND_SHIFT;
}

/* What the line of a session holds of a flow's addresses. */
static __always_inline __u64 flow_mix(__u64 hash)
{
	return hash >> 2 & ((1ULL << (64 - TUNNY_FLOW_MIX_SHIFT)) - 1);
}

/* Is it the line of a flow? One of a session may be another flow's, which its record tells. */
static __always_inline int flow_is(const struct tunny_flow_line *line, __u64 hash, __u64 addresses, __u64 rest)
{
	if (line->rest != rest)
		return 0;
	return flow_kind(line) ? line->addresses >> TUNNY_FLOW_MIX_SHIFT == flow_mix(hash) : line->addresses == addresses;
}

static __always_inline __u64 flow_version(__u32 number)
{
	__u64 *word = map_value(&tunny_flow_versions, number);

	return word ? READ_ONCE(*word) : TUNNY_FLOW_CHANGING;
}

/* That of an IPv4 address in a VPC. What is read of tables is read after it. */
static __always_inline __u64 flow_version_v4(const struct tunny_root *root, __u32 vni, __u32 addr)
{
	__u64 version = flow_version(tunny_version_of_v4(vni, addr, root->salt));

	asm volatile("" ::: "memory");
	return version;
}

/* Those of a VPC and of an IPv4 address in it. */
static __always_inline __u64 flow_versions(const struct tunny_root *root, __u32 vni, __u32 addr)
{
	return flow_version(tunny_version_of_vpc(vni, root->salt)) + flow_version_v4(root, vni, addr);
}

#endif

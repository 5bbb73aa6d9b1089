/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Longest prefix match: a tree of intervals per VPC and family; the child of a key is the number of bounds below it.
 * Counting uses no branches. Both functions are global: the verifier checks their loops once, not on every path.
 */
#ifndef TUNNY_LPM_H
#define TUNNY_LPM_H

#include "memory.h"

/* 1 if a < b, else 0, without a branch. */
static __always_inline __u64 below32(__u32 a, __u32 b)
{
	__u64 d = (__u64)a - (__u64)b;

	OPAQUE(d);
	return d >> 63;
}

static __always_inline __u64 below64(__u64 a, __u64 b)
{
	__u64 d = (~a & b) | (~(a ^ b) & (a - b));

	OPAQUE(d);
	return d >> 63;
}

/* Value of a key in the flat node at `line`, whose second line lies in the same segment. */
__noinline __u32 tunny_flat32(__u32 line, __u32 key)
{
	const __u32 *half = line_at(line);
	__u64 n = 0, pick;

	if (!half)
		return 0;
#pragma unroll
	for (int j = 0; j < 16; j++)
		n += below32(half[j], key);
	/* One line after the other: with both at hand the function would need more stack than 6.1 has left. */
	OPAQUE(n);
	half = line_at(line + 1);
	if (!half)
		return 0;
#pragma unroll
	for (int j = 0; j < 4; j++)
		n += below32(half[j], key);
	pick = *(const __u64 *)(half + 4) >> (n * 3 & 63) & 7;
	OPAQUE(pick);
	return half[6 + (pick & 7)];
}

/* Value of the route that covers a 32-bit key in a tree of nodes; 0 if there is none. `root` is a ROUTE_ROOT. */
__noinline __u32 tunny_route32(__u32 root, __u32 key)
{
	__u32 levels = root >> TUNNY_ROOT_LEVELS_SHIFT & 0xf;
	__u32 line = root & TUNNY_ROOT_LINE_MASK;

	for (int i = 0; i < TUNNY_TREE_LEVELS_MAX && levels && line; i++) {
		void *node = line_at(line);
		__u64 n = 0;

		if (!node)
			return 0;
		if (--levels == 0) {
			struct tunny_leaf32 *leaf = node;

#pragma unroll
			for (int j = 0; j < 7; j++)
				n += below32(leaf->bounds[j], key);
			return leaf->values[n & 7];
		}
		struct tunny_inner32 *inner = node;

#pragma unroll
		for (int j = 0; j < 15; j++)
			n += below32(inner->bounds[j], key);
		line = inner->child + n;
	}
	return 0;
}

/* Whichever it is. Two functions, for 6.1 allows the frames of a chain of calls 512 bytes together. */
static __always_inline __u32 route32(__u32 root, __u32 key)
{
	if ((root >> TUNNY_ROOT_LEVELS_SHIFT & 0xf) == TUNNY_ROOT_FLAT)
		return tunny_flat32(root & TUNNY_ROOT_LINE_MASK, key);
	return tunny_route32(root, key);
}

/* The same for a 64-bit key, in table memory or, where it is given, in a memory of its own; `levels` and `line` as a root has them. */
static __always_inline __u32 walk64(void *memory, __u32 line, __u32 levels, __u64 key)
{
	for (int i = 0; i < TUNNY_TREE_LEVELS_MAX && levels && line; i++) {
		void *node = memory ? map_value(memory, line) : line_at(line);
		__u64 n = 0;

		if (!node)
			return 0;
		if (--levels == 0) {
			struct tunny_leaf64 *leaf = node;

#pragma unroll
			for (int j = 0; j < 5; j++)
				n += below64(leaf->bounds[j], key);
			if (n > 5)
				n = 5;
			return leaf->values[n];
		}
		struct tunny_inner64 *inner = node;

#pragma unroll
		for (int j = 0; j < 7; j++)
			n += below64(inner->bounds[j], key);
		line = inner->child + n;
	}
	return 0;
}

/* Global, so that its loop is verified once. */
__noinline __u32 tunny_route64(__u32 line, __u32 levels, __u64 key)
{
	return walk64(NULL, line, levels, key);
}

/* IPv6: a tree over the upper half, whose values may name a tree over the lower half. */
static __always_inline __u32 route128(__u32 root, __u64 hi, __u64 lo)
{
	__u32 value = tunny_route64(root & TUNNY_ROOT_LINE_MASK, root >> TUNNY_ROOT_LEVELS_SHIFT & 0xf, hi);
	__u32 scope = value >> TUNNY_VALUE_SCOPE_SHIFT;

	if (scope >= TUNNY_SCOPE_DESCEND)
		value = tunny_route64(value & TUNNY_VALUE_ARG_MASK, scope - TUNNY_SCOPE_DESCEND + 1, lo);
	return value;
}

#endif

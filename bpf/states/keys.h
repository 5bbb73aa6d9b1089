/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Full keys with a value each: all of an exact table, the collisions of the other two. A value is loaded before its key. */
#ifndef TUNNY_STATES_KEYS_H
#define TUNNY_STATES_KEYS_H

#include "memory.h"

/* Value of an IPv4 key in a bucket of three, 0 if it is not there. */
static __always_inline __u32 keys4_in(void *memory, __u32 line, const struct state_key *k)
{
	struct tunny_states_keys4 *b = states_line(memory, line);

	if (!b)
		return 0;
#pragma unroll
	for (int i = 0; i < TUNNY_STATES_KEYS4; i++) {
		__u32 value = READ_ONCE(b->values[i]);

		if (value && READ_ONCE(b->keys[2 * i]) == k->w[0] && READ_ONCE(b->keys[2 * i + 1]) == k->w[1])
			return value;
	}
	return 0;
}

/* Value of a wide key in a bucket of two lines. */
static __always_inline __u32 keys6_in(void *memory, __u32 line, const struct state_key *k)
{
#pragma unroll
	for (int i = 0; i < TUNNY_STATES_KEYS6; i++) {
		struct tunny_states_key6 *e = states_line(memory, line + i);
		__u32 value;

		if (!e)
			return 0;
		value = READ_ONCE(e->value);
		if (value && READ_ONCE(e->key[0]) == k->w[0] && READ_ONCE(e->key[1]) == k->w[1] &&
		    READ_ONCE(e->key[2]) == k->w[2] && READ_ONCE(e->key[3]) == k->w[3] && READ_ONCE(e->key[4]) == k->w[4] &&
		    READ_ONCE(e->key[5]) == k->w[5])
			return value;
	}
	return 0;
}

/* Value of a key in the table that a TABLE_REF word names, 0 if it is not there. */
static __always_inline __u32 states_keys(void *memory, __u64 ref, const struct state_key *k)
{
	__u32 first = (__u32)ref, buckets = ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT, a, b, value;

	if (!buckets)
		return 0;
	a = tunny_bucket_of(k->hash, buckets);
	b = tunny_bucket_of(k->hash << 32, buckets);
	if (!k->wide) {
		value = keys4_in(memory, first + a, k);
		return value ? value : keys4_in(memory, first + b, k);
	}
	value = keys6_in(memory, first + TUNNY_STATES_KEYS6 * a, k);
	return value ? value : keys6_in(memory, first + TUNNY_STATES_KEYS6 * b, k);
}

#endif

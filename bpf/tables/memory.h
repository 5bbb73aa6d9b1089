/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Table memory as the fast path sees it: the root, the segments, and how a line number becomes an address.
 *
 * A segment is an array map of one 4 MiB element inside an array of maps. Both lookups are inlined by the verifier into
 * about twenty instructions without a call; the outer array (8 bytes a segment) stays in the first-level cache. A line
 * is never reused before an RCU grace period, so an address stays good for the whole run of the program.
 *
 * Memory model: x86 TSO. A published word is loaded with READ_ONCE and what it publishes only after it.
 */
#ifndef TUNNY_MEMORY_H
#define TUNNY_MEMORY_H

#include "../platform.h"

/* A memory of lines as two maps: its root, and an array of its segments, each an array map of one element. */
#define LINE_MEMORY(root_map, root_struct, segment_maps, most)		\
struct {								\
	__uint(type, BPF_MAP_TYPE_ARRAY);				\
	__uint(max_entries, 1);						\
	__uint(map_flags, BPF_F_MMAPABLE);				\
	__type(key, __u32);						\
	__type(value, struct root_struct);				\
} root_map SEC(".maps");						\
struct {								\
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);			\
	__uint(max_entries, most);					\
	__type(key, __u32);						\
	__array(values, struct {					\
		__uint(type, BPF_MAP_TYPE_ARRAY);			\
		__uint(max_entries, 1);					\
		__uint(map_flags, BPF_F_MMAPABLE);			\
		__uint(key_size, sizeof(__u32));			\
		__uint(value_size, TUNNY_SEGMENT_BYTES);		\
	});								\
} segment_maps SEC(".maps")

LINE_MEMORY(tunny_root, tunny_root, tunny_segments, TUNNY_SEGMENTS_MAX);

/* The 4 MiB of the segment that holds `line`, or NULL if there is none. */
static __always_inline void *segment_of(__u32 line)
{
	__u32 segment = line >> TUNNY_SEGMENT_SHIFT;
	void *map = map_value(&tunny_segments, segment);

	if (!map)
		return NULL;
	return map_value(map, 0);
}

/* Address of a line, or NULL. Line 0 means none: callers test it before. */
static __always_inline void *line_at(__u32 line)
{
	void *segment = segment_of(line);

	if (!segment)
		return NULL;
	return segment + (line & (TUNNY_SEGMENT_LINES - 1)) * TUNNY_LINE_BYTES;
}

/* The segment that was looked up last: what lies together is found together. */
struct near {
	void *segment;
	__u32 number;
};

/* line_at, which skips both lookups if the line is in the segment of the one before. */
static __always_inline void *line_near(struct near *near, __u32 line)
{
	if (line >> TUNNY_SEGMENT_SHIFT != near->number || !near->segment) {
		near->segment = segment_of(line);
		near->number = line >> TUNNY_SEGMENT_SHIFT;
		if (!near->segment)
			return NULL;
	}
	return near->segment + (line & (TUNNY_SEGMENT_LINES - 1)) * TUNNY_LINE_BYTES;
}

/* Address of a two-line structure, which begins at an even line and so never leaves its segment. */
static __always_inline void *line_pair_at(__u32 line)
{
	void *segment = segment_of(line);

	if (!segment)
		return NULL;
	return segment + (line & (TUNNY_SEGMENT_LINES - 2)) * TUNNY_LINE_BYTES;
}

/* All ones if x is zero, else zero, without a branch. */
static __always_inline __u64 mask_if_zero(__u64 x)
{
	__u64 y = x | -x;

	OPAQUE(y);
	return (y >> 63) - 1;
}

/* The bucket of a key in the table that a TABLE_REF word names. */
static __always_inline __u32 bucket_line(__u64 ref, __u64 hash)
{
	return (__u32)ref + tunny_bucket_of(hash, ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT);
}

#endif

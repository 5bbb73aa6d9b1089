/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* NCs by id: a word with its state and IPv4 address, and a record. */
#ifndef TUNNY_NC_H
#define TUNNY_NC_H

#include "memory.h"

/* First line of the chunk of an NC, 0 if there is none. */
static __always_inline __u32 nc_chunk(const struct tunny_root *root, __u32 nc)
{
	return root->nc_chunks[nc >> TUNNY_NC_CHUNK_SHIFT & (TUNNY_NC_CHUNKS_MAX - 1)];
}

/* The NC_WORD of an NC, 0 if there is none. */
static __always_inline __u64 nc_word(const struct tunny_root *root, __u32 nc)
{
	__u32 chunk = nc_chunk(root, nc);
	const __u64 *line = line_at(chunk + (nc & ((1U << TUNNY_NC_CHUNK_SHIFT) - 1)) / 8);

	return chunk && line ? READ_ONCE(line[nc & 7]) : 0;
}

/* The record of an NC whose word is not zero. */
static __always_inline struct tunny_nc_record *nc_record(const struct tunny_root *root, __u32 nc)
{
	return line_at(nc_chunk(root, nc) + (1U << (TUNNY_NC_CHUNK_SHIFT - 3)) + (nc & ((1U << TUNNY_NC_CHUNK_SHIFT) - 1)));
}

#endif

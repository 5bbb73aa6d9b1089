/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Session memory as the fast path sees it: a memory of its own beside table memory, of the same kind (lines, segments), with
 * its own root. Keys, hashes and places are described in crate abi, session.rs.
 *
 * A key has two candidate buckets, which are prefetched together. Within a bucket nothing branches on where a tag matches: the
 * lines of all slots with the tag are or-ed, which is the line itself as long as there is one (19 of 20 keys); what is more
 * is looked at one by one. The whole key in the record decides.
 */
#ifndef TUNNY_SESSION_H
#define TUNNY_SESSION_H

#include "memory.h"

LINE_MEMORY(tunny_session_root, tunny_session_root, tunny_session_segments, TUNNY_SESSION_SEGMENTS_MAX);

/* A key in the words of its record, its hash, and which of the two it is. */
struct session_key {
	__u64 w[5];		/* IPv4: two words */
	__u64 hash;
	__u32 v6;
	__u32 outer;		/* 0: inner key, 1: outer key; a pair: 2 | VNI of the other end << 8 */
};

/* Address of a line of session memory, or NULL. */
static __always_inline void *session_line(__u32 line)
{
	__u32 segment = line >> TUNNY_SEGMENT_SHIFT;
	void *map = map_value(&tunny_session_segments, segment);

	if (!map)
		return NULL;
	map = map_value(map, 0);
	if (!map)
		return NULL;
	return map + (line & (TUNNY_SEGMENT_LINES - 1)) * TUNNY_LINE_BYTES;
}

/* The second line of a record of two, which begins at an even line. */
static __always_inline struct tunny_session_addresses *session_second(__u32 line)
{
	return session_line(line | 1);
}

static __always_inline void hash_session(struct session_key *k, __u64 salt)
{
	if (k->v6)
		k->hash = tunny_hash3(tunny_hash3(k->w[0], k->w[1], k->w[2], salt) ^ (k->outer > 1 ? k->outer : 0),
				      k->w[3], k->w[4], salt);
	else
		k->hash = tunny_hash3(k->outer, k->w[0], k->w[1], salt);
}

/* A session of the filter has one key for both directions. */
static __always_inline int session_is_pair(__u64 state)
{
	return (state >> TUNNY_SESSION_OWNER_SHIFT & 7) == TUNNY_SESSION_OWNER_FILTER;
}

/* Is the record, at this line, that of the key? */
static __always_inline int session_is_of(const struct session_key *k, const struct tunny_session_record *r, __u64 state, __u32 line)
{
	struct tunny_session_addresses *a;
	__u64 w0 = READ_ONCE(r->inner0), w1, outer;

	if (!(state & TUNNY_SESSION_STATE_MASK) || !(state & TUNNY_SESSION_V6) != !k->v6)
		return 0;
	if (session_is_pair(state) != (k->outer > 1) || (k->outer > 1 && READ_ONCE(r->outer) >> 40 != k->outer >> 8))
		return 0;
	if (!k->v6) {
		w1 = READ_ONCE(r->inner1);
		if (k->outer != 1)
			return w0 == k->w[0] && w1 == k->w[1];
		outer = READ_ONCE(r->outer);
		w0 = (w0 & 0xffULL << 32) | outer >> 32;
		w1 = (w1 & ~0xffff0000ULL) | (outer & 0xffff0000);
		return w0 == k->w[0] && w1 == k->w[1];
	}
	a = session_second(line);
	if (!a)
		return 0;
	if (k->outer == 1)
		w0 &= (1ULL << 40) - 1;
	return w0 == k->w[0] && a->vm_hi == k->w[1] && a->vm_lo == k->w[2] && a->remote_hi == k->w[3] &&
	       a->remote_lo == k->w[4];
}

static __always_inline int session_is(const struct session_key *k, __u32 line)
{
	struct tunny_session_record *r = session_line(line);

	return r && session_is_of(k, r, READ_ONCE(r->state), line);
}

/*
 * A bucket's slots that have the tag: their lines or-ed, and in *n how many. The upper four bits of all tags are compared at once;
 * of the slots that are left, one or two in a full bucket, the place of each in its word is read off a product.
 */
static __always_inline __u64 session_match(const struct tunny_session_bucket *b, __u32 low, __u32 high, __u64 *n)
{
	const __u64 ones = 0x11111111111111ULL;
	__u64 left = READ_ONCE(b->tags) ^ high * ones, lines = 0;

	left |= left >> 1;
	left |= left >> 2;
	left = ~left & ones;
	for (int i = 0; i < TUNNY_SESSION_SLOTS && left; i++) {
		__u64 bit = left & -left, at = 15 - (bit * 0xfedcba9876543210ULL >> 60), slot, mask;

		left ^= bit;
		OPAQUE(at);
		slot = READ_ONCE(*(const __u32 *)((const void *)b + (at & 15) * 4));
		mask = mask_if_zero(slot >> TUNNY_SESSION_SLOT_TAG_SHIFT ^ low);
		lines |= slot & mask;
		*n -= mask;
	}
	return lines & TUNNY_SESSION_SLOT_LINE;
}

/* Candidate buckets of a key in the index that a TABLE_REF word names. */
static __always_inline void session_candidates(__u64 ref, __u64 hash, __u32 *first, __u32 *second)
{
	*first = (__u32)ref + tunny_bucket_of(hash, ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT);
	*second = (__u32)ref + tunny_bucket_of(hash << 32, ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT);
}

static __always_inline void session_touch_line(__u32 line)
{
	const volatile __u64 *at = session_line(line);
	__u64 x;

	if (!at)
		return;
	x = *at;
	OPAQUE(x);
}

/*
 * Prefetches both buckets of an IPv4 key (`outer` as in session_key) before anything else of it is known to matter. Wrong words cost
 * time and nothing else: who looks the session up reads the key from the packet itself.
 */
__noinline int tunny_session_prefetch(__u32 outer, __u64 w0, __u64 w1)
{
	__u32 first, second;
	struct tunny_session_root *root = map_value(&tunny_session_root, 0);

	if (!root)
		return 0;
	session_candidates(READ_ONCE(root->index), tunny_hash3(outer, w0, w1, root->salt), &first, &second);
	session_touch_line(first);
	session_touch_line(second);
	return 1;
}

/*
 * How many slots of two buckets have a tag, and the line of the one if it is one. The second bucket's line comes while the first is looked at.
 */
static __always_inline __u64 session_probe(struct tunny_session_bucket *a, struct tunny_session_bucket *b, __u32 tag, __u64 *lines)
{
	__u64 n = READ_ONCE(b->tags);

	OPAQUE(n);
	n = 0;
	*lines = session_match(a, tag & 31, tag >> 5, &n);
	*lines |= session_match(b, tag & 31, tag >> 5, &n);
	return n;
}

static __always_inline __u32 session_in(__u64 ref, const struct session_key *k)
{
	__u32 first, second, tag = (k->hash ^ k->hash >> 32) & TUNNY_SESSION_TAG_MASK, line;
	struct tunny_session_bucket *a, *b;
	__u64 n, lines;

	session_candidates(ref, k->hash, &first, &second);
	a = session_line(first);
	b = session_line(second);
	if (!a || !b)
		return 0;
	n = session_probe(a, b, tag, &lines);
	if (likely(n <= 1))
		return n && session_is(k, lines) ? lines : 0;
	/* Two or more have the tag: one by one. */
	for (int i = 0; i < 2 * TUNNY_SESSION_SLOTS; i++) {
		__u32 at = i < TUNNY_SESSION_SLOTS ? i : i - TUNNY_SESSION_SLOTS, slot;
		struct tunny_session_bucket *c = session_line(i < TUNNY_SESSION_SLOTS ? first : second);

		if (!c)
			return 0;
		slot = READ_ONCE(c->slots[at]);
		line = slot & TUNNY_SESSION_SLOT_LINE;
		if (line && slot >> TUNNY_SESSION_SLOT_TAG_SHIFT == (tag & 31) && session_is(k, line))
			return line;
	}
	return 0;
}

/*
 * Prefetches both buckets of an IPv4 key and for the record that they name, so that it is being loaded before anything else of the packet
 * is known to matter. Returns its line, 0 if no slot or several have the tag. Wrong words cost time and nothing else.
 */
__noinline __u32 tunny_session_guess(__u32 outer, __u64 w0, __u64 w1)
{
	__u32 first, second, tag;
	struct tunny_session_root *root = map_value(&tunny_session_root, 0);
	struct tunny_session_bucket *a, *b;
	__u64 hash, lines, n;

	if (!root)
		return 0;
	hash = tunny_hash3(outer, w0, w1, root->salt);
	session_candidates(READ_ONCE(root->index), hash, &first, &second);
	tag = (hash ^ hash >> 32) & TUNNY_SESSION_TAG_MASK;
	a = session_line(first);
	b = session_line(second);
	if (!a || !b)
		return 0;
	n = session_probe(a, b, tag, &lines);
	if (n != 1)
		return 0;
	session_touch_line(lines);
	return lines;
}

/* Line of the record of a key, 0 if there is none. */
__noinline __u32 tunny_session_find(struct session_key *k)
{
	__u32 line;
	struct tunny_session_root *root = map_value(&tunny_session_root, 0);
	__u64 index, old;

	if (!k || !root || READ_ONCE(root->magic) != TUNNY_SESSION_MAGIC)
		return 0;
	hash_session(k, root->salt);
	/* In this order: whoever sees a new index sees the old one, too, in which the session may still be. */
	index = READ_ONCE(root->index);
	old = READ_ONCE(root->index_old);
	if (unlikely(old)) {
		line = session_in(old, k);
		if (line)
			return line;
	}
	return session_in(index, k);
}

/* ---- what a packet of a session changes ---- */

/* A TCP segment as the sequence rules need it. */
struct segment {
	__u32 seq;
	__u32 end;		/* sequence number behind it */
	__u32 ack;
	__u32 window;
};

static __always_inline int seq_after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

/* A side's window in bytes: scale 15 stands for no option. */
static __always_inline __u32 window_bytes(__u32 window, __u32 scale)
{
	if (!window)
		window = 1;
	return scale > 14 ? window : window << (scale & 15);
}

/*
 * A segment that lies in the windows moves the stored numbers forward, and says that the connection lives. The same rules as
 * conntrack::tcp::in_window and Record::progress; `in`: it goes to the VM.
 */
static __always_inline int session_progress(struct tunny_session_record *r, __u64 state, const struct segment *s, int in)
{
	__u32 *end = in ? &r->end_in : &r->end_out, *ack = in ? &r->ack_in : &r->ack_out;
	__u16 *window = in ? &r->window_in : &r->window_out;
	__u32 their_end = in ? READ_ONCE(r->end_out) : READ_ONCE(r->end_in);
	__u32 their_ack = in ? READ_ONCE(r->ack_out) : READ_ONCE(r->ack_in);
	__u32 their_window = in ? READ_ONCE(r->window_out) : READ_ONCE(r->window_in);
	__u32 scale_out = state >> TUNNY_SESSION_SCALE_OUT_SHIFT & 15, scale_in = state >> TUNNY_SESSION_SCALE_IN_SHIFT & 15;
	__u32 my_end = READ_ONCE(*end), mine, theirs, old;

	mine = window_bytes(READ_ONCE(*window), in ? scale_in : scale_out);
	theirs = window_bytes(their_window, in ? scale_out : scale_in);
	old = mine > 66000 ? mine : 66000;
	if (seq_after(s->seq, their_ack + theirs) || !seq_after(s->end, my_end - theirs - 1) ||
	    seq_after(s->ack, their_end) || !seq_after(s->ack, their_end - old - 1))
		return 0;
	if (seq_after(s->end, my_end))
		WRITE_ONCE(*end, s->end);
	if (seq_after(s->ack, READ_ONCE(*ack)))
		WRITE_ONCE(*ack, s->ack);
	if (s->window > READ_ONCE(*window))
		WRITE_ONCE(*window, s->window);
	return 1;
}

/* What a session counts: packets, and their bytes. */
static __always_inline __u64 session_count(__u64 packets, __u32 bytes)
{
	return packets | (__u64)bytes << TUNNY_SESSION_COUNT_BYTES_SHIFT;
}

/* Last seen, and counters. */
static __always_inline void session_touch(struct tunny_session_record *r, int alive, __u64 count, __u64 now)
{
	__u32 coarse = now >> TUNNY_SESSION_TIME_SHIFT;

	if (alive && READ_ONCE(r->last_seen) != coarse)
		WRITE_ONCE(r->last_seen, coarse);
	__sync_fetch_and_add(&r->count, count);
}

#endif

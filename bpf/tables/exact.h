/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Exact match: chained buckets of one cache line (IPv6: two).
 *
 * A packet needs up to three of these tables (tenants, members, VM-NC) and their buckets depend on the packet alone.
 * So the caller first prefetches all buckets (the loads overlap), and matches afterwards. A match within a line uses no
 * branch: the position of a key in its bucket is random, and a wrong guess would cost more than comparing all of it.
 * What is not in its bucket (chains, entries in the middle of a commit) takes the global functions at the end, which
 * the verifier checks once, apart from the packet path.
 */
#ifndef TUNNY_EXACT_H
#define TUNNY_EXACT_H

#include "memory.h"

/* What the VM-NC table says about an inner address. */
struct vm {
	__u64 mac;
	__u32 id;
	__u32 nc;
	__u32 flags;
	__u32 pad;
};

/* A VPC as table `tenants` has it. */
struct tenant {
	__u64 key;
	__u64 roots;
	__u64 mac;
	__u32 policy;		/* lower half of its POLICY word */
};

static __always_inline __u64 tenant_key(__u32 vni)
{
	return (__u64)vni << TUNNY_TENANT_VNI_SHIFT | TUNNY_TENANT_VALID;
}

/* 1 if a key word is this VPC's and valid, else 0, without a branch. */
static __always_inline __u64 tenant_is(__u64 word, __u64 key)
{
	__u64 differs = (word ^ key) >> (TUNNY_TENANT_VNI_SHIFT - 1);

	differs -= 1;
	OPAQUE(differs);
	return differs >> 63;
}

/* Reads entry `slot` (0-3; 3 is none and reads garbage inside the line). */
static __always_inline void tenant_read(const struct tunny_tenant_bucket *b, __u64 slot, struct tenant *t)
{
	const void *at;
	__u32 mac;

	slot &= 3;
	OPAQUE(slot);
	slot &= 3;
	at = (const void *)b + slot * 8;
	t->key = READ_ONCE(*(const __u64 *)at);
	t->roots = READ_ONCE(*(const __u64 *)(at + 24));
	mac = READ_ONCE(*(const __u32 *)((const void *)b + slot * 4 + 48));
	t->mac = (t->key & 0xffff) << 32 | mac;
	t->policy = READ_ONCE(*(const __u32 *)((const void *)b + slot * 4 + __builtin_offsetof(struct tunny_tenant_bucket, policies)));
}

/* Home bucket of a VPC, or NULL. */
static __always_inline struct tunny_tenant_bucket *tenant_bucket_at(const struct tunny_root *root, __u64 hash)
{
	return line_pair_at((__u32)root->tenants + 2 * tunny_bucket_of(hash, root->tenants >> TUNNY_TABLE_REF_BUCKETS_SHIFT));
}

static __always_inline __u64 tenant_hash(__u32 vni, __u64 salt)
{
	return tunny_hash1((__u64)vni << TUNNY_TENANT_VNI_SHIFT, salt);
}

/* Number of the VPC's entry if it is in this bucket, else that of another one. */
static __always_inline __u64 tenant_slot(const struct tunny_tenant_bucket *b, __u64 key)
{
	return tenant_is(READ_ONCE(b->keys[1]), key) + 2 * tenant_is(READ_ONCE(b->keys[2]), key);
}

/* Reads the VPC's entry if it is in this line. */
static __always_inline int tenant_match(const struct tunny_tenant_bucket *b, __u32 vni, struct tenant *t)
{
	__u64 key = tenant_key(vni);

	tenant_read(b, tenant_slot(b, key), t);
	return (t->key ^ key) >> (TUNNY_TENANT_VNI_SHIFT - 1) == 0;
}

/* Looks a VPC up, chain and all. Returns line << 2 | slot, 0 if there is none. */
__noinline __u64 tunny_tenant_chain(__u64 ref, __u64 salt, __u32 vni)
{
	__u64 key = tenant_key(vni);
	__u32 line = (__u32)ref + 2 * tunny_bucket_of(tenant_hash(vni, salt), ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT);

	for (int i = 0; i < TUNNY_CHAIN_MAX && line; i++) {
		struct tunny_tenant_bucket *b = line_pair_at(line);

		if (!b)
			return 0;
		for (__u32 j = 0; j < 3; j++) {
			if (tenant_is(READ_ONCE(b->keys[j]), key))
				return (__u64)line << 2 | j;
		}
		line = READ_ONCE(b->next);
	}
	return 0;
}

/* The same, and reads it. 0 if there is none. */
static __always_inline int tenant_lookup(const struct tunny_root *root, __u32 vni, struct tenant *t)
{
	__u64 found = tunny_tenant_chain(root->tenants, root->salt, vni);
	struct tunny_tenant_bucket *b;

	if (!found)
		return 0;
	b = line_pair_at(found >> 2);
	if (!b)
		return 0;
	tenant_read(b, found & 3, t);
	return 1;
}

/* The same for an entry that was prefetched: its bucket first, without a branch. */
static __always_inline int tenant_find(const struct tunny_root *root, __u32 vni, struct tenant *t)
{
	struct tunny_tenant_bucket *b = tenant_bucket_at(root, tenant_hash(vni, root->salt));

	return b && (tenant_match(b, vni, t) || tenant_lookup(root, vni, t));
}

static __always_inline __u32 tenant_id(__u64 key)
{
	return key >> TUNNY_TENANT_ID_SHIFT & (TUNNY_TENANTS_MAX - 1);
}

/* Line of a tenant's record, 0 if there is none. Its state lies 2^12 lines behind, its counting words behind that. */
static __always_inline __u32 tenant_record(const struct tunny_root *root, __u32 id)
{
	__u32 first = root->tenant_chunks[id >> TUNNY_TENANT_CHUNK_SHIFT & (TUNNY_TENANT_CHUNKS_MAX - 1)];

	return first ? first + (id & ((1U << TUNNY_TENANT_CHUNK_SHIFT) - 1)) : 0;
}

/* Line of the meter block of a VPC, 0 if it has none. */
static __always_inline __u32 tenant_meter(const struct tunny_root *root, __u64 key)
{
	struct tunny_tenant_record *record;
	__u32 line;

	if (likely(!(key & TUNNY_TENANT_METERED)))
		return 0;
	line = tenant_record(root, tenant_id(key));
	record = line_at(line);
	return line && record ? READ_ONCE(record->meter) : 0;
}

/* Not zero if the whole word is in this line. */
static __always_inline __u64 word_present(const struct tunny_word_bucket *b, __u64 word)
{
	__u64 differ = ~0ULL;

#pragma unroll
	for (int i = 0; i < 7; i++) {
		__u64 x = READ_ONCE(b->entries[i]) ^ word;
		__u64 y = x | -x;

		OPAQUE(y);
		differ &= y;
	}
	return ~differ >> 63;
}

/* Follows the chain of a word table from its bucket on. Returns the entry, 0 if there is none. */
__noinline __u64 tunny_word_chain(__u32 line, __u64 key, __u32 shift)
{
	for (int i = 0; i < TUNNY_CHAIN_MAX && line; i++) {
		struct tunny_word_bucket *b = line_at(line);

		if (!b)
			return 0;
		for (int j = 0; j < 7; j++) {
			__u64 entry = READ_ONCE(b->entries[j]);

			if (entry && entry >> (shift & 63) == key)
				return entry;
		}
		line = READ_ONCE(b->next);
	}
	return 0;
}

/* Looks a key up in a word table that is not on the hottest path. Returns the entry, 0 if there is none. */
static __always_inline __u64 word_lookup(__u64 ref, __u64 salt, __u64 key, __u32 shift)
{
	if (!ref)
		return 0;
	return tunny_word_chain(bucket_line(ref, tunny_hash1(key << shift, salt)), key, shift);
}

/* The tenant's generation: the top bits of both halves of its `roots` word. */
static __always_inline __u64 generation_of(__u64 roots)
{
	return (roots >> 31 & 1) | (roots >> 62 & 2);
}

/* Whether a key word with this state is visible in this generation. */
static __always_inline int key_visible(__u64 key, __u64 generation)
{
	__u64 same = (key >> TUNNY_KEY_GENERATION_SHIFT & 3) == generation;

	if (!(key & TUNNY_KEY_VALID))
		return 0;
	if (key & TUNNY_KEY_ADDING && !same)
		return 0;
	return !(key & TUNNY_KEY_DYING && same);
}

/*
 * A stable entry (state: valid, nothing else) in this line: its position + 1; 0 if it is not in this line. `marks` are those of the same
 * three words, read once: an entry that had one then may be stable a moment later, and must be looked for all the same.
 */
static __always_inline __u32 vm4_match(const struct tunny_vm4_bucket *b, __u64 key, __u64 *marks)
{
	__u64 k0 = READ_ONCE(b->keys[0]), k1 = READ_ONCE(b->keys[1]), k2 = READ_ONCE(b->keys[2]);
	__u64 at = mask_if_zero(k0 ^ key) & 1;

	at |= mask_if_zero(k1 ^ key) & 2;
	at |= mask_if_zero(k2 ^ key) & 3;
	*marks = (k0 | k1 | k2) & (TUNNY_KEY_ADDING | TUNNY_KEY_DYING);
	return at & 3;
}

/*
 * The line in which a search of a bucket that lacks a stable entry goes on: the next, or the same if a commit was under way when its keys
 * were read.
 */
static __always_inline __u32 vm4_rest(const struct tunny_vm4_bucket *b, __u32 line, __u64 marks)
{
	return unlikely(marks) ? line : READ_ONCE(b->next);
}

static __always_inline __u64 vm4_key(__u32 vni, __u32 addr)
{
	return (__u64)vni << TUNNY_VM4_VNI_SHIFT | (__u64)addr << TUNNY_VM4_ADDR_SHIFT;
}

/* Reads entry `slot` (0-2) of a bucket. */
static __always_inline void vm4_read(const struct tunny_vm4_bucket *b, __u32 slot, struct vm *vm)
{
	__u64 at = (slot & 3) * 12;
	const __u32 *v;
	__u32 v0, v1, v2;

	OPAQUE(at);
	if (at > 24)
		at = 24;
	v = (void *)b->values + at;
	v0 = v[0];
	v1 = v[1];
	v2 = v[2];
	vm->mac = (__u64)v0 << 16 | v1 >> 16;
	vm->id = (v1 & 0xffff) << 8 | v2 >> 24;
	vm->nc = v2 >> 4 & (TUNNY_NCS_MAX - 1);
	vm->flags = v2 & 0xf;
}

/* Full lookup with chain and visibility. Returns line << 2 | slot, 0 if there is no visible entry. */
__noinline __u64 tunny_vm4_chain(__u32 line, __u64 key, __u32 generation)
{
	for (int i = 0; i < TUNNY_CHAIN_MAX && line; i++) {
		struct tunny_vm4_bucket *b = line_at(line);

		if (!b)
			return 0;
		for (__u32 j = 0; j < 3; j++) {
			__u64 have = READ_ONCE(b->keys[j]);

			if ((have & ~TUNNY_KEY_STATE_MASK) == key && key_visible(have, generation))
				return (__u64)line << 2 | j;
		}
		line = READ_ONCE(b->next);
	}
	return 0;
}

/* A lookup in a two-line table: VM-NC for IPv6, or nc6 (VNI 0). */
struct key6 {
	__u64 hi;
	__u64 lo;
	__u32 vni;
	__u32 generation;
};

/* Full lookup of an IPv6 address. Returns line << 2 | slot, 0 if there is no visible entry. */
__noinline __u64 tunny_vm6_chain(__u64 ref, __u64 salt, const struct key6 *k)
{
	__u64 hash, key;
	__u32 line;

	if (!k || !ref)
		return 0;
	hash = tunny_hash3(k->vni, k->hi, k->lo, salt);
	key = (__u64)k->vni << TUNNY_VM6_VNI_SHIFT | (hash & 0xffffffff) << TUNNY_VM6_TAG_SHIFT;
	line = (__u32)ref + 2 * tunny_bucket_of(hash, ref >> TUNNY_TABLE_REF_BUCKETS_SHIFT);
	for (int i = 0; i < TUNNY_CHAIN_MAX && line; i++) {
		struct tunny_vm6_bucket *b = line_pair_at(line);

		if (!b)
			return 0;
		for (__u32 j = 0; j < 3; j++) {
			__u64 have = READ_ONCE(b->keys[j]);

			if ((have & ~TUNNY_KEY_STATE_MASK) == key && b->addrs[2 * j] == k->hi &&
			    b->addrs[2 * j + 1] == k->lo && key_visible(have, k->generation))
				return (__u64)line << 2 | j;
		}
		line = READ_ONCE(b->next);
	}
	return 0;
}

/* Reads what tunny_vm6_chain found. Returns 0, or -1 on a fault. */
static __always_inline int vm6_read(__u64 found, struct vm *vm)
{
	struct tunny_vm6_bucket *b = line_pair_at(found >> 2);
	__u32 slot = found & 3;
	const __u64 *v;
	__u64 v0, v1;

	if (!b)
		return -1;
	if (slot > 2)
		return -1;
	slot *= 16;
	OPAQUE(slot);
	if (slot > 32)
		return -1;
	v = (void *)b->values + slot;
	v0 = v[0];
	v1 = v[1];
	vm->mac = v0 >> 16;
	vm->flags = v0 & 0xf;
	vm->id = v1 >> 32;
	vm->nc = (__u32)v1 & (TUNNY_NCS_MAX - 1);
	return 0;
}

#endif

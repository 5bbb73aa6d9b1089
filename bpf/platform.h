/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the program needs of its surroundings: maps, the frame, clocks, where packets leave. Only this file calls helpers of the kernel, and
 * those of the two places where the stages run: XDP (platform_xdp.h), and tc (platform_skb.h), of which TUNNY_SKB tells.
 *
 * Include order, from below: include/, platform.h, tables/, states/, packet.h, addresses.h, connection/, framing/, stages/, programs. No
 * include runs upwards (`cargo xtask style`).
 */
#ifndef TUNNY_PLATFORM_H
#define TUNNY_PLATFORM_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "include/abi.h"

#define READ_ONCE(x) (*(const volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
/* Hides a value from the optimiser, so that arithmetic is not turned back into branches. */
#define OPAQUE(x) asm volatile("" : "+r"(x))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* A constant of 16 bits as it stands in a packet. */
#define NET16(x) __builtin_bswap16(x)

/* ---- what the program is for ---- */

/*
 * Not zero: the program is attached nowhere, and probes run through it: what they meet stays as it is. Set by the loader. A constant of the
 * loaded program: of one that is attached the verifier removes what depends on it.
 */
const volatile struct {
	__u32 only;
	__u32 pad;
} tunny_probes SEC(".rodata.probes") = {};

/* ---- maps ---- */

/* The value under a key, or NULL. The map may be one that another map holds. */
static __always_inline void *map_value(void *map, __u32 key)
{
	return bpf_map_lookup_elem(map, &key);
}

/* Of the kernel's structure behind an array map: where its values begin. */
struct bpf_array {
	char value[0];
} __attribute__((preserve_access_index));

static __always_inline __u32 value_offset(void)
{
	return __builtin_preserve_field_info(((struct bpf_array *)0)->value, 0);
}

/* ---- the processor ---- */

static __always_inline __u32 cpu_number(void)
{
	return bpf_get_smp_processor_id();
}

static __always_inline __u64 time_ns(void)
{
	return bpf_ktime_get_ns();
}

/* A CPU's clock that is read once a tick. */
struct tick {
	__u64 jiffies;
	__u64 ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct tick);
} tunny_ticks SEC(".maps");

/* The same, at most a tick of the kernel behind. It calls nothing but where a tick has passed: the kernel puts jiffies into the program. */
static __always_inline __u64 time_tick_ns(void)
{
	struct tick *t = map_value(&tunny_ticks, 0);
	__u64 now = bpf_jiffies64();

	if (!t)
		return bpf_ktime_get_coarse_ns();
	if (t->jiffies != now) {
		t->ns = bpf_ktime_get_coarse_ns();
		t->jiffies = now;
	}
	return t->ns;
}

static __always_inline __u32 random_number(void)
{
	return bpf_get_prandom_u32();
}

/*
 * What a VM's frame leaves to a driver. PLAIN: nothing, or the checksum of its own TCP or UDP in IP, and its payload to be cut. STRANGE: something
 * else. LIE: lengths and headers that contradict each other.
 */
enum offload { OFFLOAD_PLAIN, OFFLOAD_STRANGE, OFFLOAD_LIE };

#ifdef TUNNY_SKB
#include "platform_skb.h"
#else
#include "platform_xdp.h"
#endif

/* ---- where events go ---- */

/* Room for an event; not NULL: submit_event must follow. */
static __always_inline void *reserve_event(void *ring, __u64 bytes)
{
	return bpf_ringbuf_reserve(ring, bytes, 0);
}

static __always_inline void submit_event(void *event)
{
	bpf_ringbuf_submit(event, 0);
}

#endif

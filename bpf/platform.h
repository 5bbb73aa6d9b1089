/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the program needs of its surroundings: maps, the frame, clocks, where packets leave. Only this file calls helpers of the kernel,
 * so that tables, states, framings and stages could run in another place that has the same few functions.
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

/* ---- the frame ---- */

static __always_inline void *data_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *end_of(struct xdp_md *ctx)
{
	return (void *)(long)ctx->data_end;
}

/*
 * The same bounds, loaded by hand: in large functions the compiler puts the extension of a 32-bit load apart from it, and the verifier
 * forgets what it was.
 */
static __always_inline void *front(struct xdp_md *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(at) : "r"(ctx));
	return at;
}

static __always_inline void *behind(struct xdp_md *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 4)" : "=r"(at) : "r"(ctx));
	return at;
}

/* Bytes in all buffers of the frame. */
static __always_inline __u32 buffers_bytes(struct xdp_md *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

/*
 * Length of the frame. A multi-buffer frame's first buffer is never small (but with header split, which drivers turn off
 * for XDP), so small frames are spared the call; frame_holds checks again before it calls one too short.
 */
static __always_inline __u32 frame_bytes(struct xdp_md *ctx)
{
	__u64 first = end_of(ctx) - data_of(ctx);

	return first > 1024 ? buffers_bytes(ctx) : first;
}

/* Copies bytes that may lie in any buffer. Negative: they are not all there. */
static __always_inline long copy_out(struct xdp_md *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_xdp_load_bytes(ctx, at, to, bytes);
}

/* The frame begins so many bytes later. Not zero: the driver refuses. */
static __always_inline int move_head(struct xdp_md *ctx, int by)
{
	return bpf_xdp_adjust_head(ctx, by);
}

/* The frame ends so many bytes later. Not zero: the driver refuses. */
static __always_inline int move_tail(struct xdp_md *ctx, int by)
{
	return bpf_xdp_adjust_tail(ctx, by);
}

/* Makes room for metadata in front of the frame and returns it. NULL: the driver knows none. */
static __always_inline void *make_meta(struct xdp_md *ctx, int bytes)
{
	void *meta;

	if (bpf_xdp_adjust_meta(ctx, -bytes))
		return NULL;
	meta = (void *)(long)ctx->data_meta;
	return meta + bytes > data_of(ctx) ? NULL : meta;
}

/* Sum of words of 32 bits, a multiple of four bytes and at most 512. */
static __always_inline __u32 sum_words(void *at, __u32 bytes)
{
	return bpf_csum_diff(0, 0, at, bytes, 0);
}

/* ---- where packets and events go ---- */

/* Names the way out: a port, or a socket. XDP_DROP: there is none under this key. */
static __always_inline int redirect(void *map, __u32 key)
{
	return bpf_redirect_map(map, key, XDP_DROP);
}

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

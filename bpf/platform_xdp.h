/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The frame as XDP has it: a packet as it is on the wire, in one buffer or several. A part of platform.h. */
#ifndef TUNNY_PLATFORM_XDP_H
#define TUNNY_PLATFORM_XDP_H

/* What the kernel gives the program: the verifier knows it by this name. */
#define frame_ctx xdp_md

/* Whether VLAN tags stand beside the frame. */
#define TAGS_BESIDE 0
/* Bytes of a frame that are looked at. */
#define FRAME_MAX 0xffff

static __always_inline void *data_of(struct frame_ctx *ctx)
{
	return (void *)(long)ctx->data;
}

static __always_inline void *end_of(struct frame_ctx *ctx)
{
	return (void *)(long)ctx->data_end;
}

/*
 * The same bounds, loaded by hand: in large functions the compiler puts the extension of a 32-bit load apart from it, and the verifier
 * forgets what it was.
 */
static __always_inline void *front(struct frame_ctx *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 0)" : "=r"(at) : "r"(ctx));
	return at;
}

static __always_inline void *behind(struct frame_ctx *ctx)
{
	void *at;

	asm volatile("%0 = *(u32 *)(%1 + 4)" : "=r"(at) : "r"(ctx));
	return at;
}

/* Bytes in all buffers of the frame. */
static __always_inline __u32 buffers_bytes(struct frame_ctx *ctx)
{
	return bpf_xdp_get_buff_len(ctx);
}

/*
 * Length of the frame. A multi-buffer frame's first buffer is never small (but with header split, which drivers turn off
 * for XDP), so small frames are spared the call; frame_holds checks again before it calls one too short.
 */
static __always_inline __u32 frame_bytes(struct frame_ctx *ctx)
{
	__u64 first = end_of(ctx) - data_of(ctx);

	return first > 1024 ? buffers_bytes(ctx) : first;
}

/* Copies bytes that may lie in any buffer. Negative: they are not all there. */
static __always_inline long copy_out(struct frame_ctx *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_xdp_load_bytes(ctx, at, to, bytes);
}

/* The frame begins so many bytes later. Not zero: the driver refuses. */
static __always_inline int move_head(struct frame_ctx *ctx, int by)
{
	return bpf_xdp_adjust_head(ctx, by);
}

/* The frame ends so many bytes later. Not zero: the driver refuses. */
static __always_inline int move_tail(struct frame_ctx *ctx, int by)
{
	return bpf_xdp_adjust_tail(ctx, by);
}

/* Makes room for metadata in front of the frame and returns it. NULL: the driver knows none. */
static __always_inline void *make_meta(struct frame_ctx *ctx, int bytes)
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

/* Where the frame came in. */
static __always_inline __u32 port_of(struct frame_ctx *ctx)
{
	return ctx->ingress_ifindex;
}

static __always_inline __u32 queue_of(struct frame_ctx *ctx)
{
	return ctx->rx_queue_index;
}

static __always_inline int tagged(struct frame_ctx *ctx)
{
	return 0;
}

/* ---- what is left to drivers: nothing ---- */

static __always_inline int checksum_pending(struct frame_ctx *ctx)
{
	return 0;
}

static __always_inline int stands_for_many(struct frame_ctx *ctx)
{
	return 0;
}

static __always_inline int tunnel_of_many(struct frame_ctx *ctx)
{
	return 0;
}

static __always_inline int tunny_offload(struct frame_ctx *ctx)
{
	return OFFLOAD_PLAIN;
}

struct segments {
};

static __always_inline void measure(struct frame_ctx *ctx, struct segments *s, __u32 at)
{
}

static __always_inline int stays_in_tunnel(const struct segments *s)
{
	return 0;
}

static __always_inline __u64 packets_in(const struct segments *s)
{
	return 1;
}

static __always_inline __u32 all_of(__u32 packets)
{
	return 1;
}

static __always_inline __u32 one_of(__u32 bytes, __u32 packets)
{
	return bytes;
}

static __always_inline __u32 bytes_in(const struct segments *s, __u32 bytes, __u32 around)
{
	return bytes;
}

static __always_inline __u32 longest_in(const struct segments *s, __u32 bytes)
{
	return bytes;
}

static __always_inline void tell_sum(struct frame_ctx *ctx, __u64 difference)
{
}

/* ---- room for tunnels ---- */

/* The frame begins with its inner one, in front of which are so many bytes. Not zero: the driver refuses. */
static __always_inline int lay_bare(struct frame_ctx *ctx, __u32 bytes, int v6)
{
	return move_head(ctx, bytes);
}

/* The inner frame, now at `from`, is to be at `to`. Not zero: the driver refuses. */
static __always_inline int make_room(struct frame_ctx *ctx, __u32 from, __u32 to, int v6, int inner_v6)
{
	return unlikely(from != to) ? move_head(ctx, (int)from - (int)to) : 0;
}

/* ---- where packets go ---- */

/* Names the way out: a port, or a socket. XDP_DROP: there is none under this key. */
static __always_inline int redirect(void *map, __u32 key)
{
	return bpf_redirect_map(map, key, XDP_DROP);
}

#endif

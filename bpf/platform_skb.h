/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The frame as tc has it: a socket buffer. It may stand for many packets, which a driver cuts apart (segmentation offload), its transport
 * checksum may be still to be filled in, and its VLAN tag stands beside it. What goes on keeps all of that. A part of platform.h.
 */
#ifndef TUNNY_PLATFORM_SKB_H
#define TUNNY_PLATFORM_SKB_H

#include <linux/pkt_cls.h>
#include <bpf/bpf_core_read.h>

/* What the kernel gives the program: the verifier knows it by this name. */
#define frame_ctx __sk_buff

/* Newer than the headers of Debian 12: what is left is an IPv4 or IPv6 packet. */
#define ADJ_ROOM_DECAP_L3_IPV4 (1ULL << 7)
#define ADJ_ROOM_DECAP_L3_IPV6 (1ULL << 8)
/* All headers of a packet in a tunnel over IPv6: Ethernet, IPv6, UDP, VXLAN, Ethernet, IPv6, TCP without options. */
#define HEADERS_BYTES 144

/* Whether VLAN tags stand beside the frame. */
#define TAGS_BESIDE 1
/* Bytes of a frame that are looked at: the largest IP packet. */
#define FRAME_MAX (14 + 0xffff)

/*
 * A field of the context. By hand: the compiler would load it by a pointer of its own to the field, which the verifier refuses, or put the
 * extension of a 32-bit load apart from it, and the verifier would forget what it was.
 */
#define OF_CTX(ctx, field)                                                                                            \
	({                                                                                                            \
		__u64 value_;                                                                                         \
		asm volatile("%0 = *(u32 *)(%1 + %2)"                                                                 \
			     : "=r"(value_)                                                                           \
			     : "r"(ctx), "i"(__builtin_offsetof(struct frame_ctx, field)));                           \
		value_;                                                                                               \
	})

static __always_inline void *data_of(struct frame_ctx *ctx)
{
	return (void *)OF_CTX(ctx, data);
}

static __always_inline void *end_of(struct frame_ctx *ctx)
{
	return (void *)OF_CTX(ctx, data_end);
}

static __always_inline void *front(struct frame_ctx *ctx)
{
	return data_of(ctx);
}

static __always_inline void *behind(struct frame_ctx *ctx)
{
	return end_of(ctx);
}

/* Bytes of the frame, wherever they lie. */
static __always_inline __u32 buffers_bytes(struct frame_ctx *ctx)
{
	return OF_CTX(ctx, len);
}

static __always_inline __u32 frame_bytes(struct frame_ctx *ctx)
{
	return OF_CTX(ctx, len);
}

/* Has the headers lie where the program can see them, if the frame has so many bytes. */
static __always_inline void gather_headers(struct frame_ctx *ctx)
{
	__u32 all = OF_CTX(ctx, len), want = all < HEADERS_BYTES ? all : HEADERS_BYTES;

	if (unlikely(data_of(ctx) + want > end_of(ctx)))
		bpf_skb_pull_data(ctx, want);
}

/* Copies bytes that may lie anywhere. Negative: they are not all there. */
static __always_inline long copy_out(struct frame_ctx *ctx, __u32 at, void *to, __u32 bytes)
{
	return bpf_skb_load_bytes(ctx, at, to, bytes);
}

/* The frame ends so many bytes later. Not zero: the kernel refuses. */
static __always_inline int move_tail(struct frame_ctx *ctx, int by)
{
	return bpf_skb_change_tail(ctx, OF_CTX(ctx, len) + by, 0);
}

/* Sum of words of 32 bits, a multiple of four bytes and at most 512. */
static __always_inline __u32 sum_words(void *at, __u32 bytes)
{
	return bpf_csum_diff(0, 0, at, bytes, 0);
}

/* Where the frame came in. */
static __always_inline __u32 port_of(struct frame_ctx *ctx)
{
	return OF_CTX(ctx, ifindex);
}

/* Whether it came with a VLAN tag. */
static __always_inline int tagged(struct frame_ctx *ctx)
{
	return OF_CTX(ctx, vlan_present);
}

/* ---- what is left to drivers ---- */

/* Of the kernel's socket buffer, what programs are not told. */
struct skb_shared_info {
	__u32 gso_type;
} __attribute__((preserve_access_index));

struct sk_buff {
	__u8 ip_summed : 2;
	__u8 encapsulation : 1;
	__u16 csum_start;
	__u16 csum_offset;
	__u32 end;
	unsigned char *head;
	unsigned char *data;
} __attribute__((preserve_access_index));

#define CHECKSUM_PARTIAL 3
#define GSO_TCPV4 (1 << 0)
#define GSO_TCPV6 (1 << 4)
#define GSO_UDP_L4 (1 << 17)

#define SKB(ctx) ((struct sk_buff *)(void *)(ctx))

/* Whether the packet's transport checksum is still to be filled in. */
static __always_inline int checksum_pending(struct frame_ctx *ctx)
{
	return BPF_CORE_READ_BITFIELD_PROBED(SKB(ctx), ip_summed) == CHECKSUM_PARTIAL;
}

/* Whether it is a frame of many packets. */
static __always_inline int stands_for_many(struct frame_ctx *ctx)
{
	return OF_CTX(ctx, gso_size) != 0;
}

/* Whether it is one that is marked to be in a tunnel. */
static __always_inline int tunnel_of_many(struct frame_ctx *ctx)
{
	return stands_for_many(ctx) && BPF_CORE_READ_BITFIELD_PROBED(SKB(ctx), encapsulation);
}

/*
 * What a VM's frame leaves to a driver. A guest chooses where a checksum is put, and how its frame is cut: what is judged by its headers must not be
 * changed behind the stages. STRANGE: the kernel may do it before the frame is judged. LIE: lengths and headers that contradict each other. A
 * global function, verified once.
 */
__noinline int tunny_offload(struct frame_ctx *ctx)
{
	__u8 *eth = data_of(ctx), *ip = eth + 14;
	int many = stands_for_many(ctx), pending = checksum_pending(ctx);
	struct skb_shared_info *shared;
	__u32 at, next, bytes, kind;

	if (likely(!many && !pending))
		return OFFLOAD_PLAIN;
	/* The checksums of all that it is cut into are to be filled in. */
	if (!pending || (void *)(ip + 20) > end_of(ctx))
		return OFFLOAD_STRANGE;
	if (*(__u16 *)(eth + 12) == NET16(0x0800)) {
		at = 14 + (*ip & 0xf) * 4;
		next = ip[9];
		bytes = __builtin_bswap16(*(__u16 *)(ip + 2));
		kind = GSO_TCPV4;
		if (*(__u16 *)(ip + 6) & NET16(0x3fff))
			return OFFLOAD_STRANGE;
	} else if (*(__u16 *)(eth + 12) == NET16(0x86dd) && (void *)(ip + 40) <= end_of(ctx)) {
		at = 54;
		next = ip[6];
		bytes = 40 + __builtin_bswap16(*(__u16 *)(ip + 4));
		kind = GSO_TCPV6;
	} else {
		return OFFLOAD_STRANGE;
	}
	if (next != 6 && next != 17)
		return OFFLOAD_STRANGE;
	if (BPF_CORE_READ(SKB(ctx), csum_offset) != (next == 6 ? 16 : 6) ||
	    BPF_CORE_READ(SKB(ctx), csum_start) - (BPF_CORE_READ(SKB(ctx), data) - BPF_CORE_READ(SKB(ctx), head)) != at)
		return OFFLOAD_STRANGE;
	if (!many)
		return OFFLOAD_PLAIN;
	if (bytes + 14 != OF_CTX(ctx, len))
		return OFFLOAD_LIE;
	if (next == 6) {
		__u8 *tcp = data_of(ctx) + (at & 0x7f);

		if ((void *)(tcp + 20) > end_of(ctx) || tcp[12] >> 4 < 5)
			return OFFLOAD_LIE;
	} else {
		kind = GSO_UDP_L4;
	}
	shared = (void *)(BPF_CORE_READ(SKB(ctx), head) + BPF_CORE_READ(SKB(ctx), end));
	return BPF_CORE_READ(shared, gso_type) & kind ? OFFLOAD_PLAIN : OFFLOAD_STRANGE;
}

/* A frame that stands for several packets. All are zero if it is one. */
struct segments {
	__u32 more;	/* packets behind the first */
	__u32 headers;	/* bytes that each of them repeats, of the frame that its framing lays bare */
	__u32 longest;	/* bytes of the longest of these frames */
	__u32 udp;	/* they are UDP */
};

/*
 * Measures what a framing has laid bare, whose IP header is at `at`, behind Ethernet. What the kernel cannot cut by TCP or UDP counts as one.
 */
static __always_inline void measure(struct frame_ctx *ctx, struct segments *s, __u32 at)
{
	__u32 size = OF_CTX(ctx, gso_size), bytes = OF_CTX(ctx, len), headers, next;
	__u8 *ip = data_of(ctx) + (at & 0xff);

	if (likely(!size) || (void *)(ip + 60) > end_of(ctx))
		return;
	if (*ip >> 4 == 4) {
		headers = (*ip & 0xf) * 4;
		next = ip[9];
	} else {
		headers = 40;
		next = ip[6];
	}
	if (headers < 20 || headers > 60)
		return;
	if (next == 6) {
		__u8 *tcp = ip + headers;

		if ((void *)(tcp + 20) > end_of(ctx))
			return;
		headers += (tcp[12] >> 4) * 4;
	} else {
		headers += 8;
		s->udp = 1;
	}
	if (bytes <= at + headers)
		return;
	s->headers = 14 + headers;
	s->longest = 14 + headers + size;
	s->more = (bytes - at - headers - 1) / size;
}

/* Whether a frame loses its marks with the tunnel that it is in: of UDP the kernel would take what is bare for the tunnel. */
static __always_inline int stays_in_tunnel(const struct segments *s)
{
	return s->udp;
}

/* Packets that the frame stands for. */
static __always_inline __u64 packets_in(const struct segments *s)
{
	return 1 + s->more;
}

/* A number of packets; where frames are one each it is 1, which costs nothing. */
static __always_inline __u32 all_of(__u32 packets)
{
	return packets;
}

/* Bytes of one of so many packets that have so many together. */
static __always_inline __u32 one_of(__u32 bytes, __u32 packets)
{
	return packets > 1 ? bytes / packets : bytes;
}

/* Bytes of all of them, of `bytes` bytes as one, of which `around` are around what was measured. */
static __always_inline __u32 bytes_in(const struct segments *s, __u32 bytes, __u32 around)
{
	return bytes + s->more * (s->headers + around);
}

/* Bytes of the longest, as measured, of `bytes` bytes as one. */
static __always_inline __u32 longest_in(const struct segments *s, __u32 bytes)
{
	return s->more ? s->longest : bytes;
}

/* The kernel's own sum over the packet, if it has one, is told of a change. */
static __always_inline void tell_sum(struct frame_ctx *ctx, __u64 difference)
{
	__u32 folded = (difference & 0xffffffff) + (difference >> 32);

	bpf_csum_update(ctx, folded);
}

/* Does the work of change_upper_sum; a global function, for it takes of the stack. Of addresses and ports the old ones are above. */
__noinline int tunny_upper_sum(struct frame_ctx *ctx, __u32 at, __u32 udp, __u64 addresses, __u32 ports)
{
	__u64 flags = udp ? BPF_F_MARK_MANGLED_0 : 0;

	if (bpf_l4_csum_replace(ctx, at, addresses >> 32, (__u32)addresses, flags | BPF_F_PSEUDO_HDR | sizeof(__u32)))
		return -1;
	return bpf_l4_csum_replace(ctx, at, ports >> 16, (__u16)ports, flags | sizeof(__u16)) ? -1 : 0;
}

/*
 * The TCP or UDP checksum at `at` with another address and port in it: whether it is there, is to be filled in (then it holds the sum of the
 * addresses) or was summed up by the driver. -1: the kernel refuses.
 */
static __always_inline int change_upper_sum(struct frame_ctx *ctx, __u32 at, int udp, __u32 old_addr, __u32 new_addr, __u16 old_port,
					    __u16 new_port)
{
	__u64 addresses = (__u64)old_addr << 32 | new_addr;

	return tunny_upper_sum(ctx, at, udp, addresses, (__u32)old_port << 16 | new_port);
}

/* ---- room for tunnels ---- */

/*
 * What is in front of the inner frame goes, of which that many bytes are: an Ethernet header stays, of this EtherType, whose addresses
 * are to be written. Not zero: the kernel refuses. A global function, for it takes of the stack.
 */
__noinline int tunny_lay_bare(struct frame_ctx *ctx, __u32 bytes, __u32 v6)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u16 type = v6 ? NET16(0x86dd) : NET16(0x0800);

	if (OF_CTX(ctx, protocol) != type)
		flags |= v6 ? ADJ_ROOM_DECAP_L3_IPV6 : ADJ_ROOM_DECAP_L3_IPV4;
	if (bpf_skb_adjust_room(ctx, -(int)bytes, BPF_ADJ_ROOM_MAC, flags) &&
	    bpf_skb_adjust_room(ctx, -(int)bytes, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return -1;
	return bpf_skb_store_bytes(ctx, 12, &type, sizeof(type), 0);
}

static __always_inline int lay_bare(struct frame_ctx *ctx, __u32 bytes, int v6)
{
	return tunny_lay_bare(ctx, bytes, v6);
}

/*
 * The inner frame, now at `from`, is to be at `to`, in a tunnel over IPv6 if v6, whose headers are to be written. Not zero: the kernel
 * refuses.
 */
static __always_inline int make_room(struct frame_ctx *ctx, __u32 from, __u32 to, int v6, int inner_v6)
{
	__u64 flags = BPF_F_ADJ_ROOM_FIXED_GSO;
	__u64 macs;
	__u32 more;
	__u16 type;
	void *at;

	if (from == to)
		return 0;
	at = data_of(ctx) + (from & 0xff);
	if (at + 14 > end_of(ctx))
		return -1;
	macs = *(__u64 *)at;
	more = *(__u32 *)(at + 8);
	type = *(__u16 *)(at + 12);
	if (from && lay_bare(ctx, from, inner_v6))
		return -1;
	flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_ENCAP_L2(14) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
	flags |= v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
	/* One packet that is in a tunnel of its VM's needs no marks. */
	if (bpf_skb_adjust_room(ctx, to, BPF_ADJ_ROOM_MAC, flags) &&
	    (OF_CTX(ctx, gso_size) || bpf_skb_adjust_room(ctx, to, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO)))
		return -1;
	/* The room is behind an Ethernet header, which becomes the outer one. */
	at = data_of(ctx) + (to & 0xff);
	if (at + 14 > end_of(ctx))
		return -1;
	*(__u64 *)at = macs;
	*(__u32 *)(at + 8) = more;
	*(__u16 *)(at + 12) = type;
	return 0;
}

/* ---- where packets go ---- */

/* Interface by which packets reach the software path, each with a tag that says where it came in and why; 0: none. Set by the loader. */
__u32 tunny_punt_port SEC(".data.punt") = 0;

/* Names the port by which it leaves. XDP_DROP: it is none. */
static __always_inline int redirect(void *ports, __u32 ifindex)
{
	/* From the map of devices the kernel takes one that is gone; the redirect would not tell. */
	if (!map_value(ports, ifindex))
		return XDP_DROP;
	return bpf_redirect(ifindex, 0) == TC_ACT_REDIRECT ? XDP_REDIRECT : XDP_DROP;
}

/* The software path is to have it, with this tag. The kernel cuts it apart and fills in its checksums on the way. */
static __always_inline int redirect_to_software(struct frame_ctx *ctx, void *ports, __u16 tag)
{
	__u32 port = READ_ONCE(tunny_punt_port);

	if (!port || !map_value(ports, port) || bpf_skb_vlan_push(ctx, NET16(0x8100), tag))
		return XDP_DROP;
	return bpf_redirect(port, 0) == TC_ACT_REDIRECT ? XDP_REDIRECT : XDP_DROP;
}

/* Set on frames that the software path leaves to the host. No frame that comes from elsewhere has a mark. */
#define MARK_HOST TUNNY_PUNT_MAGIC

/* Whether the software path has seen the frame and leaves it to the host. It comes so once. */
static __always_inline int returned(struct frame_ctx *ctx)
{
	if (likely(ctx->mark != MARK_HOST))
		return 0;
	ctx->mark = 0;
	return 1;
}

/*
 * A frame of the software path: behind an Ethernet header whose first word names an interface (big-endian) is a frame that is to come in there,
 * past the program. What the program answers.
 */
static __always_inline int give_back(struct frame_ctx *ctx)
{
	__u64 *at = data_of(ctx);
	__u32 ifindex;

	if ((void *)at + 28 > end_of(ctx))
		return TC_ACT_SHOT;
	ifindex = __builtin_bswap32(*(__u32 *)at);
	__builtin_memcpy(at, (void *)at + 14, 14);
	if (bpf_skb_adjust_room(ctx, -14, BPF_ADJ_ROOM_MAC, 0))
		return TC_ACT_SHOT;
	ctx->mark = MARK_HOST;
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* What the program answers, in tc's words. */
static __always_inline int tc_action(int action)
{
	if (action == XDP_PASS)
		return TC_ACT_UNSPEC;
	return action == XDP_REDIRECT ? TC_ACT_REDIRECT : TC_ACT_SHOT;
}

#endif

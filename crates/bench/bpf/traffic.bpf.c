/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Traffic for the veth rig: a generator that runs by BPF_PROG_TEST_RUN with live frames, and a sink that counts and drops.
 *
 * The generator is a closed loop: it sends only while fewer than `window` frames are under way, so that no ring overflows, no
 * frame is lost and the gateway is never idle. Frames are recycled after a gateway changed them: every header is
 * written anew each time.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define PACKET_SLOT 128
#define SAMPLES 65536
#define LATE 1000000

struct traffic_state {
	/* Written by the generator. */
	__u64 sent;
	__u64 next;
	__u64 window;
	__u64 packets; /* distinct packets, a power of two */
	__u64 probe_offset; /* where the time of sending stands in the frame */
	__u64 budget; /* frames that may still be sent */
	__u64 rounds; /* rounds over the packets after which the first one's connections come again */
	__u64 gap; /* ns from one frame to the next, 0: none */
	/* Written by the sink, on a line of its own. */
	__u64 received;
	__u64 strange;
	__u64 samples;
	__u64 due; /* the generator's: when the next frame is to be sent */
	__u64 probe_gap; /* ns from one probe among the frames to the next, 0: none */
	__u64 probe_due;
	__u64 probes; /* so many were sent */
	__u64 sent_at; /* when the last frame of mix_* was */
	__u64 arrival_offset; /* where the time of sending stands in the frame that arrives */
	__u8 last[PACKET_SLOT];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct traffic_state);
} traffic SEC(".maps");

struct packet_slot {
	__u64 words[PACKET_SLOT / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct packet_slot);
} packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SAMPLES);
	__type(key, __u32);
	__type(value, __u64);
} latencies SEC(".maps");

static __always_inline void note_latency(struct traffic_state *s, __u64 ns)
{
	__u32 slot = s->samples & (SAMPLES - 1);
	__u64 *sample = bpf_map_lookup_elem(&latencies, &slot);

	if (sample) {
		*sample = ns;
		s->samples++;
	}
}

/*
 * Every round over the packets has ports of its own, so that each frame is of another connection than in the round before. `at` is
 * where one of the ports stands, `sum_at` the UDP checksum, which follows the change (RFC 1624).
 */
static __always_inline void renew(__u8 *data, int at, int sum_at, __u64 round)
{
	__be16 *port = (void *)(data + at);
	__be16 *sum = (void *)(data + sum_at);
	__u16 before = bpf_ntohs(*port), after = before + (__u16)round;

	*port = bpf_htons(after);
	if (*sum) {
		__u32 s = (__u16)~bpf_ntohs(*sum) + (__u16)~before + after;

		s = (s & 0xffff) + (s >> 16);
		s = (s & 0xffff) + (s >> 16);
		*sum = bpf_htons((__u16)~s ? (__u16)~s : 0xffff);
	}
}

/* Which ports another round changes. */
enum renewed { RENEW_NONE, RENEW_SOURCE, RENEW_BOTH };

static __always_inline int generate(struct xdp_md *ctx, int words, int probe, enum renewed renewed)
{
	int udp = words == 14 ? 84 : words == 9 ? 42 : 34;
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);
	__u64 *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;

	if (!s || (void *)(data + words) > end)
		return XDP_ABORTED;
	if (s->sent - *(volatile __u64 *)&s->received >= s->window || !s->budget)
		return XDP_DROP;
	if (s->gap) {
		__u64 now = bpf_ktime_get_ns();

		if (now < s->due)
			return XDP_DROP;
		/* Time that was not given to the generator is not made up for with a burst. */
		s->due = now - s->due > LATE ? now + s->gap : s->due + s->gap;
	}
	__u64 number = s->next++;
	__u32 index = number & (s->packets - 1);
	struct packet_slot *p = bpf_map_lookup_elem(&packets, &index);
	if (!p)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < words; i++)
		data[i] = p->words[i];
	if (renewed) {
		__u64 round = s->packets ? number / s->packets : 0;

		if (s->rounds)
			round %= s->rounds;
		renew((__u8 *)data, udp, udp + 6, round);
		if (renewed == RENEW_BOTH)
			renew((__u8 *)data, udp + 2, udp + 6, round);
	}
	if (probe) {
		__u64 offset = s->probe_offset & 127;
		__u8 *at = (__u8 *)data + offset;
		__u64 now = bpf_ktime_get_ns();

		if (at + 8 > (__u8 *)end)
			return XDP_ABORTED;
		__builtin_memcpy(at, &now, 8);
	}
	s->sent++;
	s->budget--;
	return XDP_TX;
}

/* 112 bytes: outer Ethernet to inner UDP, and most of the payload. */
SEC("xdp")
int generate_vxlan(struct xdp_md *ctx)
{
	return generate(ctx, 14, 0, RENEW_NONE);
}

/* 64 bytes: a plain frame. */
SEC("xdp")
int generate_plain(struct xdp_md *ctx)
{
	return generate(ctx, 8, 0, RENEW_NONE);
}

/* The same, each the first of a new connection. */
SEC("xdp")
int generate_new_vxlan(struct xdp_md *ctx)
{
	return generate(ctx, 14, 0, RENEW_SOURCE);
}

SEC("xdp")
int generate_new_plain(struct xdp_md *ctx)
{
	return generate(ctx, 8, 0, RENEW_SOURCE);
}

/* Packets and their answers, rounds of connections. */
SEC("xdp")
int generate_pairs_vxlan(struct xdp_md *ctx)
{
	return generate(ctx, 14, 0, RENEW_BOTH);
}

SEC("xdp")
int generate_pairs_plain(struct xdp_md *ctx)
{
	return generate(ctx, 8, 0, RENEW_BOTH);
}

SEC("xdp")
int probe_vxlan(struct xdp_md *ctx)
{
	return generate(ctx, 14, 1, RENEW_NONE);
}

SEC("xdp")
int probe_plain(struct xdp_md *ctx)
{
	return generate(ctx, 8, 1, RENEW_NONE);
}

/* 72 bytes: a frame with two tags. */
SEC("xdp")
int generate_tagged(struct xdp_md *ctx)
{
	return generate(ctx, 9, 0, RENEW_NONE);
}

SEC("xdp")
int probe_tagged(struct xdp_md *ctx)
{
	return generate(ctx, 9, 1, RENEW_NONE);
}

/*
 * The same with TCP: each frame the SYN of a new connection, whose sequence number is the time of sending. Nobody on the way looks at
 * the checksum, which is not kept right.
 */
SEC("xdp")
int generate_syn(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data, *end;
	int verdict = generate(ctx, 14, 0, RENEW_NONE);
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);

	end = (void *)(long)ctx->data_end;
	data = (void *)(long)ctx->data;
	if (verdict != XDP_TX || !s || data + 112 > end || !s->packets)
		return verdict;
	renew(data, 84, 100, (s->next - 1) / s->packets);
	*(__be32 *)(data + 88) = bpf_htonl((__u32)bpf_ktime_get_ns());
	return verdict;
}

/* An Internet checksum after words of what it covers became others; `change` is the sum of ~before and after (RFC 1624). */
static __always_inline void amend(__be16 *sum, __u32 change)
{
	__u32 s = (__u16)~bpf_ntohs(*sum) + change;

	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	*sum = bpf_htons((__u16)~s);
}

#define PROBE_TIME 42 /* first payload byte of a plain UDP frame */

/*
 * Plain frames at one pace, and among them probes at another one, which carry the time of sending. The template of the probes stands behind the
 * packets. A SYN is another connection each time: 32,768 source ports, then the next source address; its checksums stay right.
 */
static __always_inline int mix(struct xdp_md *ctx, int syn)
{
	__u32 zero = 0, index;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);
	__u64 *data = (void *)(long)ctx->data, now;
	struct packet_slot *p;

	if (!s || (void *)(data + 8) > (void *)(long)ctx->data_end)
		return XDP_ABORTED;
	now = bpf_ktime_get_ns();
	if (!s->probe_gap || now < s->probe_due) {
		int verdict = s->gap ? generate(ctx, 8, 0, RENEW_NONE) : XDP_DROP;

		if (verdict == XDP_TX)
			s->sent_at = now;
		return verdict;
	}
	s->probe_due = now - s->probe_due > LATE ? now + s->probe_gap : s->probe_due + s->probe_gap;
	index = s->packets & 65535;
	p = bpf_map_lookup_elem(&packets, &index);
	if (!p)
		return XDP_ABORTED;
#pragma unroll
	for (int i = 0; i < 8; i++)
		data[i] = p->words[i];
	__u8 *at = (__u8 *)data;

	if (syn) {
		__u64 number = s->probes;
		__be16 *address = (void *)(at + 28), *port = (void *)(at + 34);
		__u16 host = bpf_ntohs(*address), from = bpf_ntohs(*port);
		__u16 new_host = host + (__u16)(number >> 15), new_from = from + (__u16)(number & 0x7fff);
		__u32 moved = (__u16)~host + new_host, sequence = (__u32)now;

		*address = bpf_htons(new_host);
		*port = bpf_htons(new_from);
		*(__be32 *)(at + 38) = bpf_htonl(sequence);
		amend((void *)(at + 24), moved);
		amend((void *)(at + 50), moved + (__u16)~from + new_from + (sequence >> 16) + (sequence & 0xffff));
	} else {
		__builtin_memcpy(at + PROBE_TIME, &now, 8);
	}
	s->probes++;
	s->sent++;
	s->sent_at = now;
	return XDP_TX;
}

SEC("xdp")
int mix_data(struct xdp_md *ctx)
{
	return mix(ctx, 0);
}

SEC("xdp")
int mix_syn(struct xdp_md *ctx)
{
	return mix(ctx, 1);
}

static __always_inline void swap(__u8 *a, __u8 *b, int bytes)
{
	for (int i = 0; i < bytes; i++) {
		__u8 x = a[i];

		a[i] = b[i];
		b[i] = x;
	}
}

/* A VXLAN frame with IPv4 and TCP inside: answers a SYN with what a server would send, and takes the time of the answer's arrival. */
SEC("xdp")
int reflect(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);

	if (!s || data + 112 > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	if (data[23] != 17 || data[73] != 6) {
		s->strange++;
		return XDP_DROP;
	}
	if (data[97] == 0x02) {
		swap(data, data + 6, 6);
		swap(data + 26, data + 30, 4);
		swap(data + 50, data + 56, 6);
		swap(data + 76, data + 80, 4);
		swap(data + 84, data + 86, 2);
		*(__be32 *)(data + 92) = bpf_htonl(bpf_ntohl(*(__be32 *)(data + 88)) + 1);
		data[97] = 0x12;
		return XDP_TX;
	}
	s->received++;
	if (data[97] != 0x12)
		return XDP_DROP;
	note_latency(s, (__u32)((__u32)bpf_ktime_get_ns() - (bpf_ntohl(*(__be32 *)(data + 92)) - 1)));
	return XDP_DROP;
}

static __always_inline int arrived(struct xdp_md *ctx, struct traffic_state *s)
{
	__u8 *data = (void *)(long)ctx->data;

	if (data + 64 > (__u8 *)(long)ctx->data_end)
		return 0;
	/* IPv4 and UDP, without options: what every side sends on. */
	if (data[12] != 8 || data[13] != 0 || data[14] != 0x45 || data[23] != 17) {
		s->strange++;
		return 0;
	}
	return 1;
}

SEC("xdp")
int count(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);

	if (!s || !arrived(ctx, s))
		return XDP_DROP;
	if (!(s->received & 1023)) {
		__u8 *data = (void *)(long)ctx->data;

		if (data + 112 <= (__u8 *)(long)ctx->data_end)
			__builtin_memcpy(s->last, data, 112);
		else
			__builtin_memcpy(s->last, data, 64);
	}
	s->received++;
	return XDP_DROP;
}

SEC("xdp")
int time(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);

	if (!s || !arrived(ctx, s))
		return XDP_DROP;
	__u8 *at = (__u8 *)(long)ctx->data + (s->arrival_offset & 127);
	__u64 sent;

	if (at + 8 > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	__builtin_memcpy(&sent, at, 8);
	note_latency(s, bpf_ktime_get_ns() - sent);
	s->received++;
	return XDP_DROP;
}

/* The sink of mix_data and mix_syn: counts all, and takes the times of probes. A router sends on a SYN without what filled its frame up. */
SEC("xdp")
int collect(struct xdp_md *ctx)
{
	__u8 *data = (void *)(long)ctx->data;
	__u32 zero = 0;
	struct traffic_state *s = bpf_map_lookup_elem(&traffic, &zero);
	__u64 now, sent;

	if (!s || data + 54 > (__u8 *)(long)ctx->data_end)
		return XDP_DROP;
	if (data[12] != 8 || data[13] != 0 || data[14] != 0x45 || (data[23] != 17 && data[23] != 6)) {
		s->strange++;
		return XDP_DROP;
	}
	s->received++;
	__builtin_memcpy(&sent, data + PROBE_TIME, 8);
	if (data[23] == 17 && !sent)
		return XDP_DROP;
	now = bpf_ktime_get_ns();
	note_latency(s, data[23] == 17 ? now - sent : (__u32)((__u32)now - bpf_ntohl(*(__be32 *)(data + 38))));
	return XDP_DROP;
}

/* A receiving veth end needs XDP or GRO to take live frames. */
SEC("xdp")
int pass(struct xdp_md *ctx)
{
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The XDP fast path: the packet's way, one line a stage. docs/design/packet-path.md is its specification, the Rust path
 * its reference; docs/design/xdp.md explains its costs. Stages are in stages/, what they look into in tables/.
 */
#include "stages/parse.h"
#include "stages/tenant.h"
#include "stages/filter.h"
#include "stages/nat.h"
#include "stages/route.h"
#include "stages/locate.h"
#include "stages/meter.h"
#include "stages/rewrite.h"
#include "stages/emit.h"

/* Takes the packet in. PASS while the table memory is not ready. */
static __always_inline int enter(struct packet *p)
{
	__u32 zero = 0;

	p->slot = bpf_get_smp_processor_id();
	p->root = bpf_map_lookup_elem(&tunny_root, &zero);
	p->stats = bpf_map_lookup_elem(&tunny_stats, &p->slot);
	if (!p->root || !p->stats)
		return -1;
	p->bytes = frame_bytes(p->ctx);
	p->stats->rx++;
	p->stats->rx_bytes += p->bytes;
	p->options = READ_ONCE(p->root->options);
	sample(p);
	return READ_ONCE(p->root->magic) == TUNNY_ROOT_MAGIC ? GO : PASS;
}

SEC("xdp.frags")
int tunny_gateway(struct xdp_md *ctx)
{
	struct packet p = { .ctx = ctx };
	int end = enter(&p);

	if (end < 0)
		return XDP_PASS;
	if (!end)
		end = parse(&p);
	if (!end)
		end = tenant(&p);
	if (!end)
		end = filter(&p);
	if (!end)
		end = nat(&p);
	if (!end)
		end = route(&p);
	if (!end)
		end = locate(&p);
	if (!end)
		end = meter(&p);
	if (!end)
		end = rewrite(&p);
	return end ? finish(&p, end) : emit(&p);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The tc fast path: path.h on socket buffers, for ports towards VMs and uplinks where TCP's large segments are to stay whole. It serves no
 * customers' circuits and no inline pairs, and asks no flow cache. docs/design/tc.md
 */
#define TUNNY_SKB
#include "path.h"

SEC("tc")
int tunny_switch(struct __sk_buff *ctx)
{
	struct tunny_root *root = map_value(&tunny_root, 0);
	struct end *e = map_value(&tunny_ends, 0);
	int end = NO_EDGE;

	if (!e || !root)
		return TC_ACT_UNSPEC;
	__builtin_memset(e, 0, sizeof(*e));
	gather_headers(ctx);
	/* Before anything else: what a VM sends is no tunnel, whatever it looks like. */
	if (READ_ONCE(root->circuits))
		end = tunny_edge(ctx, e, EDGE_PORTS);
	/* No VM marks frames. */
	if (end == NO_EDGE && returned(ctx))
		return TC_ACT_UNSPEC;
	if (end == NO_EDGE)
		end = tunny_tunnel(ctx, e);
	if (end == PASS && !tagged(ctx))
		end = nat_in(ctx, e);
	return tc_action(end < 0 ? -end : tunny_finish(ctx, e, end));
}

/* At the interface by which packets reach the software path: what comes back by it is the host's. */
SEC("tc")
int tunny_give_back(struct __sk_buff *ctx)
{
	return give_back(ctx);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";

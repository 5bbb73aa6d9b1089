/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * nat: established sessions to the Internet (decapsulated) and from it (encapsulated). What else they need (a new session, a
 * change of state, an ICMP error, a fragment) is the software path's: docs/design/packet-nat.md.
 *
 * A packet of a VPC without a route to the Internet meets one test here. The rest lies in global functions, verified once, apart
 * from the hot path: tunny_nat_out, before route, and tunny_nat_find and tunny_nat_deliver, for what parse would leave to the host. They
 * answer a verdict as a stage does, or -action for a packet that was sent.
 */
#ifndef TUNNY_NAT_H
#define TUNNY_NAT_H

#include "nat_out.h"
#include "nat_in.h"

#endif

// SPDX-License-Identifier: Apache-2.0
//! Kernel routes and neighbours (netlink) into next hops and ECMP groups.

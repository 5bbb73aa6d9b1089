// SPDX-License-Identifier: Apache-2.0
//! What a routing daemon tells a node's announcements by: kernel routes of an own protocol, with one of two metrics. Operators' configurations
//! of FRR name these numbers (`docs/design/announce.md`, `examples/frr.conf`).

/// Protocol of the kernel routes that say what a node announces (`/etc/iproute2/rt_protos` has no 84), if `spec.announce.protocol` says no other.
pub const ANNOUNCE_PROTOCOL: u8 = 84;
/// Metric of such a route.
pub const ANNOUNCE_METRIC: u32 = 8400;
/// Metric of one that is about to go: whoever has another way is to take it (RFC 8326).
pub const ANNOUNCE_METRIC_LEAVING: u32 = 8401;

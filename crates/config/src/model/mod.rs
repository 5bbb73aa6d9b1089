// SPDX-License-Identifier: Apache-2.0
//! The model.
/// Steps of the search for peer loops at most, for one change of a route.
pub const PEER_STEPS_MAX: u32 = 100_000;

// SPDX-License-Identifier: Apache-2.0
//! Benchmarks and side-by-side peers.

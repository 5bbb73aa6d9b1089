// SPDX-License-Identifier: Apache-2.0
//! Loads BPF, maps the tables, AF_XDP.
pub mod object;

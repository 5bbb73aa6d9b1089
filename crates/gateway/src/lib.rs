// SPDX-License-Identifier: Apache-2.0
//! The packet path in Rust: parse, tenant, filter, nat, route, locate, meter, rewrite, emit.

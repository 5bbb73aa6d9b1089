// SPDX-License-Identifier: Apache-2.0
//! Packet builders, text cases, table dumps, random packets.

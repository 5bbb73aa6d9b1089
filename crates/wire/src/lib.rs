// SPDX-License-Identifier: Apache-2.0
//! Packet views and builders; no I/O, no unsafe.

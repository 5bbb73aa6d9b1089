// SPDX-License-Identifier: Apache-2.0
//! Flat table memory: exact match, longest prefix match, meters, counters; one writer, lock-free readers.

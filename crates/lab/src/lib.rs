// SPDX-License-Identifier: Apache-2.0
//! A whole region in network namespaces.

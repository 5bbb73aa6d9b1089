// SPDX-License-Identifier: Apache-2.0
//! Configuration documents, validation, plan and commit.

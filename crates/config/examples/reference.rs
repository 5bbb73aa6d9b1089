// SPDX-License-Identifier: Apache-2.0
//! Prints docs/reference/configuration.md.

fn main() {
    print!("{}", config::reference());
}

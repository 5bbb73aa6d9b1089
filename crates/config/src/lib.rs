// SPDX-License-Identifier: Apache-2.0
//! Configuration documents, validation, plan and commit.
#![forbid(unsafe_code)]

mod decode;
mod documents;
mod error;
mod model;
mod object;
mod prefix;
pub mod quantity;
pub mod schema;
mod yaml;

pub use documents::{parse_files, parse_text, Documents, Item, Origin};
pub use error::{ConfigError, Place, Problem};
pub use object::*;
pub use prefix::{Mac, Prefix};
pub use schema::reference;

/// Errors that are listed at most.
pub const ERRORS_MAX: usize = 1000;

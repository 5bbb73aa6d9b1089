// SPDX-License-Identifier: Apache-2.0
//! Configuration documents, validation, plan and commit.
#![forbid(unsafe_code)]

mod binary;
mod broken;
mod commit;
mod decode;
mod documents;
mod emit;
mod error;
mod groups;
mod input;
mod internet;
mod model;
mod nat;
mod object;
mod plain;
mod plan;
mod prefix;
pub mod quantity;
mod quick;
pub mod schema;
mod servers;
mod store;
mod yaml;

pub use binary::{SnapshotError, BINARY_VERSION};
pub use commit::gateway_settings;
pub use decode::{check_name, nearest};
pub use documents::{every_error, parse_files, parse_text, validate_files, Documents, Item, Origin};
pub use emit::{yaml_document, FieldChange};
pub use error::{ConfigError, Place, Problem};
pub use input::{is_standard_input, read_input, read_text};
pub use model::{Counts, FilterPlan, Model, Position, Snapshot, Wanted, WirePlan, KINDS_OF_VPCS, PEER_STEPS_MAX};
pub use nat::NatPlan;
pub use object::*;
pub use plain::{plain, plain_json, plain_lines};
pub use plan::{Action, ChangeView, Plan, PlanView, Tally};
pub use prefix::{Mac, Prefix};
pub use schema::reference;
pub use store::{Compaction, Opened, Store, StoreError};

/// Errors that are listed at most.
pub const ERRORS_MAX: usize = 1000;

/// For tests and fuzz targets.
pub mod testing {
    pub use crate::binary::frame::reseal;
    pub use crate::store::count_records;
}

// SPDX-License-Identifier: Apache-2.0
//! Configuration documents, validation, plan and commit.
#![forbid(unsafe_code)]

mod binary;
mod broken;
mod commit;
mod declare;
mod doc;
mod documents;
mod emit;
mod error;
mod forms;
mod input;
mod kinds;
mod model;
mod nat;
mod plain;
mod plan;
mod prefix;
pub mod quantity;
mod quick;
pub mod schema;
mod store;
mod yaml;

pub use binary::{SnapshotError, BINARY_VERSION};
pub use commit::gateway_settings;
pub use doc::{check_name, nearest};
pub use documents::{every_error, parse_files, parse_text, validate_files, Documents, Item, Origin};
pub use emit::{yaml_document, FieldChange};
pub use error::{ConfigError, Place, Problem};
pub use input::{is_standard_input, read_input, read_text};
pub use kinds::*;
pub use model::{Counts, FilterPlan, Model, Position, Snapshot, Wanted, WirePlan, PEER_STEPS_MAX};
pub use nat::{durations, state_table, NatPlan};
pub use plain::{plain, plain_json, plain_lines};
pub use plan::{Action, ChangeView, Plan, PlanView, Tally};
pub use prefix::{Mac, Prefix};
pub use schema::{json_schema, reference};
pub use store::{Compaction, Opened, Store, StoreError};

/// Errors that are listed at most.
pub const ERRORS_MAX: usize = 1000;

/// For tests and fuzz targets.
pub mod testing {
    pub use crate::binary::frame::reseal;
    pub use crate::store::count_records;
}

// SPDX-License-Identifier: Apache-2.0
//! What a node is configured with: kinds of objects, documents about them, the model that they make, and plans of changes. It knows no
//! tables and no sessions: what it becomes there is for crate `compile` to say.
#![forbid(unsafe_code)]

mod binary;
mod broken;
mod declare;
mod doc;
mod documents;
mod emit;
mod error;
mod forms;
mod input;
mod kinds;
mod labels;
mod model;
mod plain;
mod plan;
mod prefix;
pub mod quantity;
mod quick;
pub mod reading;
mod resource;
pub mod schema;
mod selector;
mod time;
mod written;
pub mod yaml;

pub use binary::{SnapshotError, BINARY_VERSION};
pub use doc::{check_name, nearest};
pub use documents::{
    every_error, parse_files, parse_text, validate_files, Documents, Item, Origin, EXPORT_BEGINS, EXPORT_ENDS,
};
pub use emit::{yaml_document, FieldChange};
pub use error::{ConfigError, Place, Problem};
pub use input::{is_standard_input, read_input, read_text};
pub use kinds::*;
pub use labels::{Labels, LABELS_MAX};
pub use model::{
    merge, Changes, Counts, Delta, FilterPlan, Listing, Listings, Model, Position, Snapshot, Touched, VmView, VpcView,
    Wanted, PEER_STEPS_MAX,
};
pub use plain::{plain, plain_json, plain_lines};
pub use plan::{Action, ChangeView, Pair, Plan, PlanView, Tally};
pub use prefix::{parse_mac, parse_prefix, Mac, Prefix};
pub use resource::{Resource, RESOURCES};
pub use schema::{json_schema, reference};
pub use selector::{LabelSelector, Selector};
pub use time::Timestamp;

/// Errors that are listed at most.
pub const ERRORS_MAX: usize = 1000;

/// The bytes of snapshots and journals, for crate `store`.
pub mod bytes {
    pub use crate::binary::codec::{put_u64, Reader};
    pub use crate::binary::frame::{
        file_head, frame_at, next_intact, put_frame, read_file_head, reseal, Found, FILE_HEAD, FRAME_MAX,
    };
    pub use crate::binary::objects::{put_documents, read_documents};
}

// SPDX-License-Identifier: Apache-2.0
//! The binary forms: snapshots of whole models, and the records of the journal.
//!
//! Both are files of frames: four bytes that mark a frame, its length, a CRC-32C, and that many bytes. Lengths
//! are limited, numbers are varints, and nothing is believed before the checksum was seen, and nothing allocated on the word of
//! a number alone. What a snapshot says is then held to the same rules as documents.

pub(crate) mod codec;
pub(crate) mod frame;
pub(crate) mod objects;
mod read;
pub(crate) mod write;

use thiserror::Error;

/// Version of the binary forms that this program writes and reads.
pub const BINARY_VERSION: u32 = 1;

/// Why a binary snapshot was refused.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The file cannot be read or written.
    #[error("{what}: {error}")]
    Io {
        /// What was being done, with the file's name.
        what: String,
        /// The system's answer.
        error: std::io::Error,
    },
    /// Another kind of file.
    #[error("this is no Tunny snapshot: it does not begin with its mark")]
    NotASnapshot,
    /// Written by another version.
    #[error("the snapshot has version {found}, this program reads {BINARY_VERSION}: export it with the program that wrote it, as NDJSON")]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// Bytes that are not what was written.
    #[error("the snapshot is damaged at byte {offset}: {what}; take another copy")]
    Damaged {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// Intact, but against the rules of a configuration.
    #[error("the snapshot breaks a rule: {0}")]
    Invalid(String),
}

/// Whether bytes begin as a snapshot does.
pub(crate) fn is_snapshot(bytes: &[u8]) -> bool {
    frame::read_file_head(write::SNAPSHOT_MARK, bytes).is_some()
}

// SPDX-License-Identifier: Apache-2.0
//! Printing results: a table for people, JSON or YAML for programs.

/// How to print the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people.
    #[value(alias = "text")]
    Table,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}

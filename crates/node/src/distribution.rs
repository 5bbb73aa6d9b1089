// SPDX-License-Identifier: Apache-2.0
//! What the controller and a node say to each other: one answer without an end, a line a message or a document, and reports the other way
//! (`docs/design/controller.md`). The documents of a snapshot, of which there are millions, come in blocks of bytes behind a line that says how many:
//! in the form of a journal, which has a fifth of the size of lines and is read in a fifth of the time.

use crate::paths::Paths;
use crate::probes;
use crate::usage::Usage;
use model::bytes::{put_documents, read_documents, Reader};
use model::{Documents, Object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Version of these messages. A node that speaks another one is refused.
pub const PROTOCOL: u32 = 3;
/// Seconds between two signs of life of a stream.
pub const ALIVE_S: u64 = 10;
/// In the head of an answer: how old it may be, in milliseconds, since another controller leads or none does.
pub const AGE: &str = "tunny-age-ms";
/// Where the controller listens if no port is given.
pub const PORT: u16 = 6474;

/// A line of the stream that is no document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Message {
    /// The first one: who is who.
    Hello {
        /// What names the region, whatever it is called.
        region: String,
        /// The node, by its credential.
        node: String,
        /// Its cluster.
        cluster: String,
    },
    /// All objects follow, in blocks, as they are at a revision. What is not among them goes.
    Snapshot {
        /// The revision.
        revision: u64,
    },
    /// A part of a snapshot: so many bytes follow behind the end of this line.
    Block {
        /// Bytes.
        bytes: u64,
    },
    /// A snapshot is whole.
    End {
        /// Objects that it had.
        objects: u64,
    },
    /// A change, whose documents follow, a line each.
    Change {
        /// The revision that it makes.
        revision: u64,
        /// Documents that follow.
        puts: u64,
        /// Kinds and names of what goes.
        deletes: Vec<(String, String)>,
    },
    /// Whether the node serves in its region, by its probes. To nodes that make some.
    Admission {
        /// It does.
        admitted: bool,
        /// Why not.
        why: String,
    },
    /// Where VPCs are served, all that is decided; behind a snapshot or change, and whenever it is decided anew.
    Paths(Paths),
    /// Nothing: the controller is there.
    Alive {},
}

/// What a node says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Report {
    /// The revision that is in force here.
    pub installed: u64,
    /// The revision up to which all that is in force was found in the tables, read back from their memory.
    #[serde(default)]
    pub verified: u64,
    /// What is not there as it is configured.
    #[serde(default)]
    pub faults: Vec<String>,
    /// Why the next one is not.
    #[serde(default)]
    pub errors: Vec<String>,
    /// It was changed by hand (`--break-glass`) since.
    #[serde(default)]
    pub drift: bool,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// How full it is, and what it does.
    #[serde(default)]
    pub usage: Usage,
    /// What its probes came to. None: it makes none, as a version before, or a node without ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<probes::Report>,
    /// It was told that it is admitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub admitted: bool,
    /// Its tunnel addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// A line of what a host follows: the tunnel addresses that serve its VNIs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Upstream {
    /// As of this revision.
    pub revision: u64,
    /// By VNI; one that nobody serves is not among them.
    pub vnis: BTreeMap<u32, Vec<IpAddr>>,
}

/// What a host answers: its devices are so.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Switched {
    /// As of this revision.
    pub revision: u64,
}

/// Bytes of a block at most.
pub const BLOCK_MAX: u64 = 16 << 20;

/// Objects as a block, with the line in front of it.
pub fn block(objects: Vec<Object>) -> Vec<u8> {
    let mut docs = Documents::new();
    objects.into_iter().for_each(|object| docs.put(object));
    let mut bytes = Vec::with_capacity(docs.len() * 48);
    put_documents(&mut bytes, &docs);
    let mut text = Message::Block { bytes: bytes.len() as u64 }.line().into_bytes();
    text.extend_from_slice(&bytes);
    text
}

/// The objects of a block's bytes.
pub fn read_block(bytes: &[u8]) -> Result<Documents, String> {
    let mut reader = Reader::new(bytes);
    let docs = read_documents(&mut reader)?;
    match reader.is_empty() {
        true => Ok(docs),
        false => Err("a block has more bytes than its objects".into()),
    }
}

impl Message {
    /// As a line, with its end.
    pub fn line(&self) -> String {
        // Of such a structure nothing can fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_documents() {
        for message in [
            Message::Hello { region: "r".into(), node: "n".into(), cluster: "c".into() },
            Message::Change { revision: 7, puts: 1, deletes: vec![("Vm".into(), "a".into())] },
            Message::Paths(Paths { others_in_software: true, fast: ["a".into()].into(), ..Paths::default() }),
            Message::Alive {},
        ] {
            let line = message.line();
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
            assert!(!line.contains("apiVersion"));
        }
        assert_eq!(Message::Alive {}.line(), "{\"alive\":{}}\n");
    }

    #[test]
    fn a_block_says_what_was_put_into_it_and_a_cut_one_nothing() {
        let text = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 101}}
---
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: g}, spec: {rules: [ingress allow tcp/80 any]}}
---
{apiVersion: tunny/v1, kind: Vm, spec: {vpc: red, addresses: [10.0.0.1, fd00::1], mac: \"02:00:00:00:00:01\", nc: host}}";
        let objects: Vec<Object> =
            model::parse_text("x.yaml", text).unwrap().puts.into_iter().map(|item| item.object).collect();
        let block = block(objects.clone());
        let at = block.iter().position(|b| *b == b'\n').unwrap() + 1;
        let bytes = (block.len() - at) as u64;
        assert_eq!(serde_json::from_slice::<Message>(&block[..at]).unwrap(), Message::Block { bytes });
        let read: Vec<Object> = read_block(&block[at..]).unwrap().puts.into_iter().map(|item| item.object).collect();
        assert_eq!(read, objects);
        for cut in at..block.len() {
            assert!(read_block(&block[at..cut]).is_err(), "{cut}");
        }
        assert!(read_block(&[&block[at..], &[0]].concat()).is_err());
    }
}

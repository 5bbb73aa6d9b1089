// SPDX-License-Identifier: Apache-2.0
//! What the controller and a node say to each other: one answer without an end, a line a message or a document, and reports the other way
//! (`docs/design/controller.md`). Documents, of which a snapshot has millions, come in blocks of bytes behind a line that says how many: in the form
//! of a journal, which has a fifth of the size of lines and is read in a fifth of the time, and packed (zlib, RFC 1950).

use crate::handover::HandoverView;
use crate::paths::Paths;
use crate::probes;
use crate::routing::evpn::heard::KeptFabric;
use crate::usage::Usage;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use flate2::Compression;
use model::bytes::{put_documents, read_documents, Reader};
use model::{Documents, Object};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::IpAddr;

/// Version of these messages. A node that speaks another one is refused.
pub const PROTOCOL: u32 = 3;
/// Seconds between two signs of life of a stream.
pub const ALIVE_S: u64 = 10;
/// In the head of an answer: how old it may be, in milliseconds, since another controller leads or none does.
pub const AGE: &str = "tunny-age-ms";
/// Where the controller listens if no port is given.
pub const PORT: u16 = 6474;

/// A line of the stream.
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
    /// Documents of a snapshot or a change: so many bytes follow behind the end of this line.
    Block {
        /// Bytes.
        bytes: u64,
        /// They are packed, and so many bytes otherwise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        packed: Option<u64>,
    },
    /// A snapshot is whole.
    End {
        /// Objects that it had.
        objects: u64,
    },
    /// A change, whose documents follow in blocks.
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
    /// What VPCs have learned by EVPN, all of it, if the controller exchanges anything; behind a snapshot or change, and whenever it is another.
    Learned(Vec<LearnedVpc>),
    /// Nothing: the controller is there.
    Alive {},
}

/// What a VPC has learned by EVPN. It is nobody's document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LearnedVpc {
    /// The VPC.
    pub vni: u32,
    /// What.
    pub fabric: KeptFabric,
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
    /// VPCs of which another cluster may have sessions, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handovers: BTreeMap<String, HandoverView>,
    /// Parts of public pools that it leaves and of which nothing is in use, by pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub left: BTreeMap<String, Vec<String>>,
    /// Parts of those that it has of which nothing is in use, by pool; not all, where they are many.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub idle: BTreeMap<String, Vec<String>>,
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

/// Bytes of a block at most, packed or not.
pub const BLOCK_MAX: u64 = 16 << 20;
/// Fewer bytes are not packed: that would save nothing.
const PACKED_MIN: usize = 128;

/// Objects as blocks, each with the line in front of it.
pub fn blocks(mut objects: Vec<Object>) -> Vec<u8> {
    let mut docs = Documents::new();
    objects.iter().for_each(|object| docs.put(object.clone()));
    let mut bytes = Vec::with_capacity(docs.len() * 48);
    put_documents(&mut bytes, &docs);
    if bytes.len() as u64 > BLOCK_MAX && objects.len() > 1 {
        let second = objects.split_off(objects.len() / 2);
        return [blocks(objects), blocks(second)].concat();
    }
    let whole = bytes.len();
    let (bytes, packed) = match packed(&bytes) {
        Some(less) => (less, Some(whole as u64)),
        None => (bytes, None),
    };
    let mut text = Message::Block { bytes: bytes.len() as u64, packed }.line().into_bytes();
    text.extend_from_slice(&bytes);
    text
}

/// Bytes in fewer bytes, where that is so.
fn packed(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() < PACKED_MIN {
        return None;
    }
    let mut encoder = ZlibEncoder::new(Vec::with_capacity(bytes.len() / 2), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().filter(|less| less.len() < bytes.len())
}

/// The objects of a block's bytes, which are `packed` from so many.
pub fn read_block(bytes: &[u8], packed: Option<u64>) -> Result<Documents, String> {
    let mut whole = Vec::new();
    let bytes = match packed {
        None => bytes,
        Some(size) if size > BLOCK_MAX => {
            return Err(format!("a block of {size} bytes is announced, and {BLOCK_MAX} are taken"));
        }
        Some(size) => {
            let read = ZlibDecoder::new(bytes).take(size + 1).read_to_end(&mut whole);
            read.map_err(|e| format!("a block cannot be unpacked: {e}"))?;
            if whole.len() as u64 != size {
                return Err(format!("a block is not the {size} bytes that are announced"));
            }
            &whole
        }
    };
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
            Message::Learned(vec![LearnedVpc { vni: 7, fabric: KeptFabric::default() }]),
            Message::Alive {},
        ] {
            let line = message.line();
            assert_eq!(serde_json::from_str::<Message>(&line).unwrap(), message);
            assert!(!line.contains("apiVersion"));
        }
        assert_eq!(Message::Alive {}.line(), "{\"alive\":{}}\n");
    }

    fn head_of(block: &[u8]) -> (usize, Option<u64>) {
        let at = block.iter().position(|b| *b == b'\n').unwrap() + 1;
        let Message::Block { bytes, packed } = serde_json::from_slice(&block[..at]).unwrap() else { panic!() };
        assert!(block.len() as u64 >= at as u64 + bytes);
        (at, packed)
    }

    fn objects_of(docs: Documents) -> Vec<Object> {
        docs.puts.into_iter().map(|item| item.object).collect()
    }

    #[test]
    fn a_block_says_what_was_put_into_it_and_a_cut_one_nothing() {
        let vm = |n: u32| {
            format!("{{apiVersion: tunny/v1, kind: Vm, spec: {{vpc: red, addresses: [10.0.0.{n}, \"fd00::{n}\"], mac: \"02:00:00:00:00:01\", nc: host}}}}")
        };
        let few = "{apiVersion: tunny/v1, kind: Vpc, metadata: {name: red}, spec: {vni: 101}}
---
{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {name: g}, spec: {rules: [ingress allow tcp/80 any]}}"
            .to_string();
        let many = (1..=20).fold(few.clone(), |all, n| all + "\n---\n" + &vm(n));
        for (text, is_packed) in [(few, false), (many, true)] {
            let objects = objects_of(model::parse_text("x.yaml", &text).unwrap());
            let block = blocks(objects.clone());
            let (at, packed) = head_of(&block);
            assert_eq!(packed.is_some(), is_packed, "{} bytes", block.len());
            assert_eq!(objects_of(read_block(&block[at..], packed).unwrap()), objects);
            for cut in at..block.len() {
                assert!(read_block(&block[at..cut], packed).is_err(), "{cut}");
            }
            let Some(whole) = packed else {
                assert!(read_block(&[&block[at..], &[0]].concat(), None).is_err());
                continue;
            };
            for wrong in [0, whole - 1, whole + 1, BLOCK_MAX, BLOCK_MAX + 1] {
                assert!(read_block(&block[at..], Some(wrong)).is_err(), "{wrong}");
            }
        }
    }

    #[test]
    fn no_block_is_larger_than_one_may_be() {
        let rules = (1..=9_000).map(|n| format!("\"ingress allow tcp/{n} any\"")).collect::<Vec<_>>().join(", ");
        let group = |n: u32| {
            let text = format!(
                "{{apiVersion: tunny/v1, kind: SecurityGroup, metadata: {{name: g{n}}}, spec: {{rules: [{rules}]}}}}"
            );
            objects_of(model::parse_text("x.yaml", &text).unwrap()).remove(0)
        };
        let objects: Vec<Object> = (0..100).map(group).collect();
        let (bytes, mut read, mut at, mut number) = (blocks(objects.clone()), Vec::new(), 0, 0);
        while at < bytes.len() {
            let (head, packed) = head_of(&bytes[at..]);
            let Message::Block { bytes: size, .. } = serde_json::from_slice(&bytes[at..at + head]).unwrap() else {
                panic!()
            };
            read.extend(objects_of(read_block(&bytes[at + head..at + head + size as usize], packed).unwrap()));
            at += head + size as usize;
            number += 1;
        }
        assert!(number > 1 && read == objects, "{number} blocks");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Bodies of requests to the API of a node.

use super::{repository_files, sentence, Target};
use node::body::{read_documents, write_document};
use node::events::EventFilter;
use node::rules::RuleQuery;
use node::service::Mode;
use node::sessions::SessionQuery;
use node::trace::Request;
use std::collections::BTreeMap;

/// The first byte says which request, the rest is its body.
pub struct Requests;

/// A query of this kind, and what it says when it is written again.
fn json<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
    body: &[u8],
) -> Result<T, u64> {
    let read: T = serde_json::from_slice(body).map_err(|e| sentence(&e.to_string()))?;
    let again = serde_json::to_vec(&read).unwrap_or_else(|e| panic!("{read:?} cannot be written: {e}"));
    assert_eq!(serde_json::from_slice::<T>(&again).ok().as_ref(), Some(&read));
    Ok(read)
}

fn apply(mode: Mode, body: &[u8]) -> u64 {
    match read_documents(body, mode) {
        Ok((documents, errors)) => {
            assert!(errors.len() <= model::ERRORS_MAX + 1);
            if let Some(first) = errors.first() {
                return sentence(&first.to_string());
            }
            // What the node does next: it may refuse it, with a reason.
            match model::Model::new().apply(&documents) {
                Ok(_) => 1,
                Err(errors) => sentence(&errors.first().map_or(String::new(), ToString::to_string)),
            }
        }
        Err(e) => {
            let sentences = e.sentences();
            assert!(!sentences.is_empty());
            sentence(&sentences[0])
        }
    }
}

fn trace(body: &[u8]) -> u64 {
    let request = match json::<Request>(body) {
        Ok(request) => request,
        Err(why) => return why,
    };
    let frame = request.frame.as_deref().map(node::describe::from_hex);
    let described = request.description.as_deref().map(str::parse::<node::describe::Description>);
    match (frame, described) {
        (Some(Ok(frame)), _) => frame.len().min(3) as u64,
        (Some(Err(e)), _) => sentence(&e.to_string()),
        (None, Some(Err(e))) => sentence(&e.to_string()),
        (None, Some(Ok(d))) => d.frame(0xc000_0201, 1, 4789).map_or_else(|e| sentence(&e.to_string()), |_| 7),
        (None, None) => 8,
    }
}

impl Target for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn run(&mut self, input: &[u8]) -> u64 {
        let Some((kind, body)) = input.split_first() else { return 0 };
        let outcome = match kind % 8 {
            0 => apply(Mode::Merge, body),
            1 => apply(Mode::Replace, body),
            2 => apply(Mode::Delete, body),
            3 => apply(Mode::DeleteNames, body),
            4 => trace(body),
            5 => match json::<EventFilter>(body) {
                Ok(filter) => node::events::decode(&[0; 256]).map_or(4, |(event, _)| u64::from(filter.accepts(&event))),
                Err(why) => why,
            },
            6 => match json::<SessionQuery>(body) {
                Ok(query) => match query.filter(&BTreeMap::from([(abi::Vni(100), "v".to_string())])) {
                    Ok(_) => 2,
                    Err(e) => sentence(&e.sentences()[0]),
                },
                Err(why) => why,
            },
            _ => json::<RuleQuery>(body).map_or_else(|why| why, |_| 3),
        };
        outcome.wrapping_mul(8).wrapping_add(u64::from(kind % 8))
    }

    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut out: Vec<Vec<u8>> = Vec::new();
        for (n, text) in repository_files("examples", ".yaml").iter().enumerate() {
            let mut body = vec![n as u8 % 3];
            write_document(&mut body, "example.yaml", text);
            out.push(body);
        }
        let mut names = vec![3];
        write_document(&mut names, "names", br#"[["Vpc","a"],["vm","b"]]"#);
        out.push(names);
        let json: [(u8, &str); 5] = [
            (
                4,
                r#"{"description":"vni=100 src=10.0.0.2 dst=10.0.0.3 from=192.0.2.11 tcp sport=1 dport=2","ifindex":0,"xdp":true}"#,
            ),
            (4, r#"{"frame":"0011 22:33"}"#),
            (5, r#"{"drops":true,"punts":true,"sample":3,"reasons":["no_route"],"vni":100}"#),
            (
                6,
                r#"{"vpc":"v","protocol":"tcp","vm":"10.0.0.1","vmPort":80,"vm_port":80,"public":"192.0.2.1","remote":"::1","state":"established","limit":5}"#,
            ),
            (7, r#"{"group":"g","unused":true,"limit":3}"#),
        ];
        out.extend(json.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()));
        out
    }

    fn words(&self) -> &'static [&'static str] {
        &[
            "{",
            "}",
            "[",
            "]",
            "\":",
            ",",
            "null",
            "true",
            "1e99",
            "-1",
            "18446744073709551616",
            "\\u0000",
            "\"vni\":",
            "\"limit\":",
            "\"frame\":\"",
            "tcp",
            "::",
            "\u{0}\u{0}\u{0}\u{0}",
        ]
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The body of a request that changes the configuration: one file as it is, or several as `multipart/form-data` (RFC 7578), which `curl`
//! sends with `--data-binary @FILE` or `-F file=@FILE`.
//!
//! Whether a body has parts is seen by its first two lines: no document can begin with a boundary and a `Content-Disposition`.

use crate::error::NodeError;
use crate::service::Mode;
use memchr::memmem;
use model::{ConfigError, Documents, Kind};

/// What a body without parts is called in errors.
const NAMELESS: &str = "request";

/// The boundary of a body with parts, with the two dashes in front of it.
fn boundary(body: &[u8]) -> Option<&[u8]> {
    let end = memmem::find(body.get(..80).unwrap_or(body), b"\r\n")?;
    let (line, rest) = body.split_at(end);
    let head = rest.get(2..22)?;
    (line.starts_with(b"--") && head.eq_ignore_ascii_case(b"Content-Disposition:")).then_some(line)
}

/// The type of a body, for whoever sends it.
pub(crate) fn content_type(body: &[u8]) -> String {
    match boundary(body) {
        Some(boundary) => {
            format!("multipart/form-data; boundary={}", String::from_utf8_lossy(&boundary[2..]))
        }
        None if matches!(body.first(), Some(b'{' | b'[')) => "application/json".into(),
        None => "application/octet-stream".into(),
    }
}

/// The files of a body, each with its name. None: it is cut off.
pub(crate) fn files(body: &[u8]) -> Option<Vec<(String, &[u8])>> {
    let Some(boundary) = boundary(body) else { return Some(vec![(NAMELESS.into(), body)]) };
    let (end, mut rest, mut list) = ([b"\r\n", boundary].concat(), &body[boundary.len()..], Vec::new());
    while !rest.starts_with(b"--") {
        let (head, tail) = rest.split_at_checked(memmem::find(rest, b"\r\n\r\n")? + 4)?;
        let (content, tail) = tail.split_at_checked(memmem::find(tail, &end)?)?;
        list.push((name(&String::from_utf8_lossy(head)), content));
        rest = tail.get(end.len()..)?;
    }
    Some(list)
}

/// The name of a part: that of its file, or that of its field.
fn name(head: &str) -> String {
    let of = |key: &str| {
        let quoted = head.split_once(&format!("{key}=\""))?.1;
        let mut name = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next()? {
                '"' => return Some(name),
                '\\' => name.push(chars.next()?),
                c => name.push(c),
            }
        }
    };
    // RFC 7578 writes line ends and quotes in percent; `curl` writes a backslash in front of quotes.
    let decoded = |name: String| name.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n");
    of("; filename").or_else(|| of("; name")).map_or_else(|| NAMELESS.into(), decoded)
}

/// The documents of a request, and the errors in their texts.
pub fn read_documents(body: &[u8], mode: Mode) -> Result<(Documents, Vec<ConfigError>), NodeError> {
    let cut = || NodeError::Request("the request is cut off: a part has no end".into());
    let (mut docs, mut errors) = (Documents::new(), Vec::new());
    for (name, content) in files(body).ok_or_else(cut)? {
        if mode != Mode::DeleteNames {
            docs.read_bytes(&name, content, &mut errors);
            continue;
        }
        let names: Vec<(String, String)> = serde_json::from_slice(content)
            .map_err(|e| NodeError::Request(format!("the names are no list of [\"KIND\", \"NAME\"]: {e}")))?;
        for (kind, name) in names {
            docs.delete(Kind::from_name(&kind).ok_or_else(|| crate::listing::unknown_kind(&kind))?, &name);
        }
    }
    Ok((if mode == Mode::Delete { docs.into_deletions() } else { docs }, errors))
}

/// Appends one file to the body of an apply request.
pub fn write_document(body: &mut Vec<u8>, name: &str, content: &[u8]) {
    let boundary = match boundary(body).map(|b| String::from_utf8_lossy(b).into_owned()) {
        Some(boundary) => {
            // Without the two dashes that end it.
            body.truncate(body.len().saturating_sub(boundary.len() + 4));
            boundary
        }
        // A random number: no file has it in it.
        None => format!("--tunny-{:016x}{:016x}", crate::daemon::salt(), crate::daemon::salt()),
    };
    let name = name.replace('\\', "\\\\").replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
    let head = format!(
        "{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: application/octet-stream\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(content);
    body.extend_from_slice(format!("\r\n{boundary}--\r\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_back_with_their_names() {
        let mut body = Vec::new();
        let list: [(&str, &[u8]); 4] = [
            ("a.yaml", b"one"),
            ("dir/b \"c\".ndjson", b"--x\r\nContent-Disposition:\r\n\r\n"),
            ("", b""),
            ("a\\b\n", b"\r\n--"),
        ];
        for (i, (name, content)) in list.iter().enumerate() {
            write_document(&mut body, name, content);
            let back = files(&body).unwrap();
            assert_eq!(back.len(), i + 1);
            assert!(list.iter().zip(&back).all(|(a, b)| a.0 == b.0 && a.1 == b.1), "{back:?}");
        }
        assert!(content_type(&body).starts_with("multipart/form-data; boundary=tunny-"));
        for cut in 100..body.len() - 4 {
            assert!(files(&body[..cut]).is_none_or(|f| f.len() == 1 && f[0].0 == NAMELESS), "{cut}");
        }
    }

    #[test]
    fn what_curl_sends_is_understood() {
        let form = b"--------------------------d74496d66958873e\r\nContent-Disposition: form-data; name=\"file\"; filename=\"r.yaml\"\r\nContent-Type: application/octet-stream\r\n\r\nkind: Vpc\n\r\n--------------------------d74496d66958873e\r\nContent-Disposition: form-data; name=\"more\"\r\n\r\n{}\r\n--------------------------d74496d66958873e--\r\n";
        assert_eq!(files(form).unwrap(), [("r.yaml".to_string(), &b"kind: Vpc\n"[..]), ("more".to_string(), b"{}")]);
        for plain in ["", "---\nkind: Vpc\n", "--\r\n", "{\"kind\": \"Vpc\"}\n", "--x\r\nContent-Type: a\r\n"] {
            assert_eq!(files(plain.as_bytes()).unwrap(), [(NAMELESS.to_string(), plain.as_bytes())]);
        }
    }
}

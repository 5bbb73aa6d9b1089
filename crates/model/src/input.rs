// SPDX-License-Identifier: Apache-2.0
//! Reading what a path names, be it a file, a pipe or standard input, and never more than a limit.

use crate::yaml::YAML_BYTES_MAX;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Bytes of an NDJSON file or a snapshot at most.
pub const LARGE_BYTES_MAX: u64 = 16 << 30;

/// Whether a path means standard input.
pub fn is_standard_input(path: &Path) -> bool {
    ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"].iter().any(|p| path == Path::new(p))
}

/// Everything that a path has to give, up to the limit of its form and to `most`. A pipe is read until its writer closes it.
pub fn read_input(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    if is_standard_input(path) {
        return read_limited(&mut std::io::stdin().lock(), path, bytes, most);
    }
    let (mut file, length) = open(path)?;
    let expected = length.min(most).min(LARGE_BYTES_MAX);
    bytes.try_reserve(expected as usize).map_err(|e| e.to_string())?;
    read_limited(&mut file, path, bytes, most)
}

/// The text of a file, a pipe or standard input, of whatever form, up to `most` bytes.
pub fn read_text(path: &Path, most: u64) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = match is_standard_input(path) {
        true => std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes),
        false => open(path)?.0.take(most + 1).read_to_end(&mut bytes),
    };
    read.map_err(|e| e.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it has more than {most} bytes; split it"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = good.iter().filter(|b| **b == b'\n').count() + 1;
        let last = good.rsplit(|b| *b == b'\n').next().unwrap_or_default();
        let column = String::from_utf8_lossy(last).chars().count() + 1;
        format!("line {line}, column {column} (byte {}) is not UTF-8 text", good.len() + 1)
    })
}

/// A file or a pipe, and how long it says it is.
fn open(path: &Path) -> Result<(std::fs::File, u64), String> {
    let about = std::fs::metadata(path).map_err(|e| e.to_string())?;
    let kind = about.file_type();
    let unfit = match () {
        () if kind.is_dir() => Some("a folder, not a file"),
        () if kind.is_socket() => Some("a socket, not a file"),
        () if kind.is_block_device() => Some("a block device, not a file"),
        () => None,
    };
    if let Some(what) = unfit {
        return Err(format!("it is {what}"));
    }
    Ok((std::fs::File::open(path).map_err(|e| e.to_string())?, about.len()))
}

/// Reads on until the end. What is large must be of a form that is read piece by piece, which its name or its first bytes say.
fn read_limited(source: &mut dyn Read, path: &Path, mut bytes: Vec<u8>, most: u64) -> Result<Vec<u8>, String> {
    let named = path.extension().is_some_and(|e| e == "ndjson" || e == "jsonl" || e == "tny");
    let small = if named { LARGE_BYTES_MAX } else { YAML_BYTES_MAX }.min(most);
    let mut read = |bytes: &mut Vec<u8>, limit: u64| {
        let left = (limit + 1).saturating_sub(bytes.len() as u64);
        source.take(left).read_to_end(bytes).map_err(|e| e.to_string())
    };
    read(&mut bytes, small)?;
    let mut limit = small;
    if bytes.len() as u64 > limit && (crate::binary::is_snapshot(&bytes) || is_ndjson(&bytes)) {
        limit = LARGE_BYTES_MAX.min(most);
        read(&mut bytes, limit)?;
    }
    if bytes.len() as u64 > limit {
        let advice = if limit < most { "; use NDJSON or a snapshot for large sets" } else { "" };
        return Err(format!("it has more than {limit} bytes{advice}"));
    }
    Ok(bytes)
}

/// Whether the first line that is not blank is one JSON object and the next does not part YAML documents: then the text is
/// NDJSON, however it is called.
pub(crate) fn is_ndjson(text: &[u8]) -> bool {
    let mut lines = text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    first.first() == Some(&b'{')
        && first.len() <= crate::documents::LINE_BYTES_MAX
        && serde_json::from_slice::<serde::de::IgnoredAny>(first).is_ok()
        && lines.next().is_none_or(|second| second.first() == Some(&b'{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read_input(dir.path(), 10).unwrap_err(), "it is a folder, not a file");
        assert_eq!(read_text(dir.path(), 10).unwrap_err(), "it is a folder, not a file");
        let file = dir.path().join("t");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_text(&file, 10).as_deref(), Ok("0123456789"));
        assert_eq!(read_text(&file, 9).unwrap_err(), "it has more than 9 bytes; split it");
        std::fs::write(&file, b"a\nb\xff").unwrap();
        assert_eq!(read_text(&file, 9).unwrap_err(), "line 2, column 2 (byte 4) is not UTF-8 text");
        let socket = dir.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(read_input(&socket, 10).unwrap_err(), "it is a socket, not a file");
        assert!(read_input(&dir.path().join("none"), 10).unwrap_err().contains("No such file"));
    }

    #[test]
    fn an_endless_source_is_cut_at_the_limit() {
        let why = read_input(Path::new("/dev/zero"), 1000).unwrap_err();
        assert_eq!(why, "it has more than 1000 bytes");
        assert_eq!(read_input(Path::new("/dev/null"), 1000).unwrap(), b"");
    }

    #[test]
    fn ndjson_is_known_by_its_first_line() {
        assert!(is_ndjson(b"\n {\"a\": 1}\n{\"a\": 2}\n"));
        for text in ["{a: 1}\n", "a: 1\n", "{\"a\": 1}\n---\n{\"a\": 2}", "{\"a\": 1,\n\"b\": 2}", ""] {
            assert!(!is_ndjson(text.as_bytes()), "{text}");
        }
    }
}

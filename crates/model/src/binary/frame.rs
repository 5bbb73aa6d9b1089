// SPDX-License-Identifier: Apache-2.0
//! Frames: a mark, a length, a checksum, bytes.

/// Bytes in front of the payload: mark, length, checksum.
pub(crate) const FRAME_HEAD: usize = 12;
/// First bytes of every frame, so that frames can be found behind a damage.
const MARK: [u8; 4] = *b"tFr\x01";
/// Payload at most.
pub const FRAME_MAX: usize = 64 << 20;

const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLES: [[u32; 256]; 8] = {
    let mut t = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u32;
        let mut bit = 0;
        while bit < 8 {
            c = if c & 1 == 1 { c >> 1 ^ POLYNOMIAL } else { c >> 1 };
            bit += 1;
        }
        t[0][i] = c;
        i += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut i = 0;
        while i < 256 {
            t[k][i] = t[k - 1][i] >> 8 ^ t[0][(t[k - 1][i] & 0xff) as usize];
            i += 1;
        }
        k += 1;
    }
    t
};

/// CRC-32C, eight bytes a step.
pub(crate) fn crc32c(start: u32, bytes: &[u8]) -> u32 {
    let mut crc = !start;
    let mut chunks = bytes.chunks_exact(8);
    for c in &mut chunks {
        let low = u32::from_le_bytes([c[0], c[1], c[2], c[3]]) ^ crc;
        crc = TABLES[7][(low & 0xff) as usize]
            ^ TABLES[6][(low >> 8 & 0xff) as usize]
            ^ TABLES[5][(low >> 16 & 0xff) as usize]
            ^ TABLES[4][(low >> 24) as usize]
            ^ TABLES[3][c[4] as usize]
            ^ TABLES[2][c[5] as usize]
            ^ TABLES[1][c[6] as usize]
            ^ TABLES[0][c[7] as usize];
    }
    for b in chunks.remainder() {
        crc = crc >> 8 ^ TABLES[0][((crc ^ u32::from(*b)) & 0xff) as usize];
    }
    !crc
}

/// Appends a frame.
pub fn put_frame(out: &mut Vec<u8>, payload: &[u8]) {
    let len = (payload.len() as u32).to_le_bytes();
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&len);
    out.extend_from_slice(&crc32c(crc32c(0, &len), payload).to_le_bytes());
    out.extend_from_slice(payload);
}

/// What stands at a place in a file of frames.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// A frame, and where the next begins.
    Frame(&'a [u8], usize),
    /// The end of the file.
    End,
    /// No frame, and why.
    Bad(&'static str),
}

/// Reads the frame at `at`.
pub fn frame_at(bytes: &[u8], at: usize) -> Found<'_> {
    let rest = bytes.get(at..).unwrap_or(&[]);
    if rest.is_empty() {
        return Found::End;
    }
    let word = |i: usize| rest.get(i..i + 4).and_then(|b| <[u8; 4]>::try_from(b).ok());
    let (Some(mark), Some(len), Some(crc)) = (word(0), word(4), word(8)) else {
        return Found::Bad("the file ends inside the head of a frame");
    };
    if mark != MARK {
        return Found::Bad("a frame's mark is missing");
    }
    let n = u32::from_le_bytes(len) as usize;
    if n > FRAME_MAX {
        return Found::Bad("a frame's length is impossible");
    }
    let Some(payload) = rest.get(FRAME_HEAD..FRAME_HEAD + n) else {
        return Found::Bad("the file ends inside a frame");
    };
    if crc32c(crc32c(0, &len), payload) != u32::from_le_bytes(crc) {
        return Found::Bad("a frame's checksum does not fit its bytes");
    }
    Found::Frame(payload, at + FRAME_HEAD + n)
}

/// The next intact frame behind `at`, if any.
pub fn next_intact(bytes: &[u8], at: usize) -> Option<usize> {
    let rest = bytes.get(at..)?;
    let starts = rest.windows(4).enumerate().filter(|(_, w)| *w == MARK);
    starts.map(|(i, _)| at + i).find(|i| matches!(frame_at(bytes, *i), Found::Frame(..)))
}

/// Length of a file's head.
pub const FILE_HEAD: usize = 24;

/// The head of a file: eight bytes that say what it is, the version, a number (of the last change it holds, or the one
/// before its first), a checksum.
pub fn file_head(mark: &[u8; 8], number: u64) -> [u8; FILE_HEAD] {
    let mut head = [0; FILE_HEAD];
    head[..8].copy_from_slice(mark);
    head[8..12].copy_from_slice(&super::BINARY_VERSION.to_le_bytes());
    head[12..20].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c(0, &head[..20]);
    head[20..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// Reads the head of a file: version and number.
pub fn read_file_head(mark: &[u8; 8], bytes: &[u8]) -> Option<Result<(u32, u64), &'static str>> {
    if bytes.get(..8)? != mark {
        return None;
    }
    let (Some(version), Some(number), Some(crc)) = (bytes.get(8..12), bytes.get(12..20), bytes.get(20..24)) else {
        return Some(Err("the file ends inside its head"));
    };
    if crc32c(0, &bytes[..20]).to_le_bytes() != crc {
        return Some(Err("the checksum of the file's head does not fit"));
    }
    let version = version.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
    Some(Ok((version, number.iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b)))))
}

/// The same bytes with right checksums, as far as frames can be followed: for tests and fuzzing of what lies behind them.
pub fn reseal(bytes: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    if let Some(head) = out.get_mut(..FILE_HEAD) {
        let crc = crc32c(0, &head[..20]);
        head[20..].copy_from_slice(&crc.to_le_bytes());
    }
    let mut at = FILE_HEAD;
    while let Some(len) = out.get(at + 4..at + 8).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
        let end = at + FRAME_HEAD + u32::from_le_bytes(len) as usize;
        let Some(payload) = out.get(at + FRAME_HEAD..end) else { break };
        let crc = crc32c(crc32c(0, &len), payload).to_le_bytes();
        out[at + 8..at + FRAME_HEAD].copy_from_slice(&crc);
        at = end;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_check_string() {
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(crc32c(0, b"12345"), b"6789"), 0xe306_9283);
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn frames_come_back_and_any_changed_byte_is_seen() {
        let mut file = Vec::new();
        put_frame(&mut file, b"hello");
        put_frame(&mut file, b"");
        let Found::Frame(p, next) = frame_at(&file, 0) else { panic!() };
        assert_eq!(p, b"hello");
        assert_eq!(frame_at(&file, next), Found::Frame(b"", file.len()));
        assert_eq!(frame_at(&file, file.len()), Found::End);
        for i in 0..next {
            let mut bad = file.clone();
            bad[i] ^= 0x10;
            assert!(matches!(frame_at(&bad, 0), Found::Bad(_)), "byte {i}");
            assert_eq!(next_intact(&bad, 1), Some(next));
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Handshake and frames of the connection between a node and its agent.
//!
//! *Handshake.* Each side says magic, version and a random number of 32 bytes; then each proves that it has the shared key: HMAC-SHA-256 over
//! both greetings and who it is. The agent proves first. Each direction has a key of its own, made of the shared one and both greetings.
//! *Frame.* Length (u32, little-endian, at most [`CHUNK_MAX`]), chunk, seal: the first 16 bytes of HMAC-SHA-256 over the frame's number and the
//! chunk. So whoever lacks the key can neither speak nor change, repeat, leave out or reorder anything; but they can read it: nothing is
//! encrypted. Keys and states of connections are no secret to who sees the packets; where the way to the agent crosses foreign networks, put it
//! into a tunnel.

use conntrack_compact::message::{CHUNK_MAX, VERSION};
use hmac::{Hmac, Mac};
use sha2::Sha256;

type Code = Hmac<Sha256>;

/// Bytes of a greeting.
pub const HELLO: usize = 8 + 2 + 32;
/// Bytes of a proof.
pub const PROOF: usize = 32;
const MAGIC: [u8; 8] = *b"TNYAGENT";
const SEAL: usize = 16;

/// Why a connection ends here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The other side is no agent or node.
    #[error("The other side does not speak this protocol: is the address right?")]
    Magic,
    /// It is of another version.
    #[error(
        "The other side speaks version {0} of the protocol, this one {VERSION}: give both the same version of Tunny."
    )]
    Version(u16),
    /// It lacks the key.
    #[error("The other side has another key: give both the same key file.")]
    Proof,
    /// A frame of impossible length.
    #[error("A frame says it is {0} bytes long, and {CHUNK_MAX} is the most.")]
    Length(u32),
    /// A frame with a wrong seal.
    #[error("A frame was changed on its way, or is not from the other side.")]
    Seal,
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The node, which connects.
    Node,
    /// The agent.
    Agent,
}

/// A greeting.
pub fn hello(nonce: [u8; 32]) -> [u8; HELLO] {
    let mut out = [0; HELLO];
    out[..8].copy_from_slice(&MAGIC);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[10..].copy_from_slice(&nonce);
    out
}

/// Whether a greeting is one of this version.
pub fn check(hello: &[u8; HELLO]) -> Result<(), FrameError> {
    let version = u16::from_le_bytes([hello[8], hello[9]]);
    match (hello[..8] == MAGIC, version) {
        (false, _) => Err(FrameError::Magic),
        (true, VERSION) => Ok(()),
        (true, other) => Err(FrameError::Version(other)),
    }
}

/// What both sides know of a connection: the shared key and both greetings.
pub struct Secrets {
    key: Vec<u8>,
    greetings: Vec<u8>,
}

impl Secrets {
    /// Of a connection.
    pub fn new(key: &[u8], node: &[u8; HELLO], agent: &[u8; HELLO]) -> Secrets {
        Secrets { key: key.to_vec(), greetings: [&node[..], &agent[..]].concat() }
    }

    fn code(&self, what: &[u8], side: Side) -> Code {
        // HMAC takes keys of any length.
        let mut code = Code::new_from_slice(&self.key).unwrap_or_else(|_| unreachable!("a key of any length will do"));
        code.update(what);
        code.update(if side == Side::Node { b"node" } else { b"agent" });
        code.update(&self.greetings);
        code
    }

    /// That this side has the key.
    pub fn proof(&self, side: Side) -> [u8; PROOF] {
        self.code(b"proof", side).finalize().into_bytes().into()
    }

    /// Whether the other side has it.
    pub fn check(&self, side: Side, proof: &[u8; PROOF]) -> Result<(), FrameError> {
        self.code(b"proof", side).verify_slice(proof).map_err(|_| FrameError::Proof)
    }

    fn direction(&self, from: Side) -> Code {
        let key = self.code(b"frames", from).finalize().into_bytes();
        Code::new_from_slice(&key).unwrap_or_else(|_| unreachable!("a key of any length will do"))
    }

    /// Seals what this side says.
    pub fn sealer(&self, from: Side) -> Sealer {
        Sealer { code: self.direction(from), number: 0 }
    }

    /// Opens what that side says.
    pub fn opener(&self, from: Side) -> Opener {
        Opener { code: self.direction(from), number: 0, buffer: Vec::new() }
    }
}

fn seal(code: &Code, number: u64, chunk: &[u8]) -> Code {
    let mut code = code.clone();
    code.update(&number.to_le_bytes());
    code.update(chunk);
    code
}

/// Makes frames.
pub struct Sealer {
    code: Code,
    number: u64,
}

impl Sealer {
    /// Appends the frame of a chunk.
    pub fn seal(&mut self, chunk: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&(chunk.len() as u32).to_le_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(&seal(&self.code, self.number, chunk).finalize().into_bytes()[..SEAL]);
        self.number += 1;
    }
}

/// Takes frames apart, as their bytes come.
pub struct Opener {
    code: Code,
    number: u64,
    buffer: Vec<u8>,
}

impl Opener {
    /// Bytes that have come. The caller takes all frames out before it gives more, so that no more than one frame and what is read at once is held.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next chunk, if all of it is there.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        let Some((length, rest)) = self.buffer.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length);
        if length as usize > CHUNK_MAX {
            return Err(FrameError::Length(length));
        }
        let Some((chunk, rest)) = rest.split_at_checked(length as usize) else { return Ok(None) };
        let Some((sealed, _)) = rest.split_first_chunk::<SEAL>() else { return Ok(None) };
        seal(&self.code, self.number, chunk).verify_truncated_left(sealed).map_err(|_| FrameError::Seal)?;
        self.number += 1;
        let chunk = chunk.to_vec();
        self.buffer.drain(..4 + chunk.len() + SEAL);
        Ok(Some(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(key: &[u8]) -> Secrets {
        Secrets::new(key, &hello([1; 32]), &hello([2; 32]))
    }

    #[test]
    fn frames_come_back_whatever_pieces_they_come_in() {
        let (mut sealer, mut out) = (secrets(b"k").sealer(Side::Node), Vec::new());
        let chunks: Vec<Vec<u8>> = (0..40).map(|i| vec![i as u8; i * 37 % CHUNK_MAX]).collect();
        chunks.iter().for_each(|chunk| sealer.seal(chunk, &mut out));
        for step in [1, 3, 64, out.len()] {
            let (mut opener, mut got) = (secrets(b"k").opener(Side::Node), Vec::new());
            for piece in out.chunks(step) {
                opener.feed(piece);
                while let Some(chunk) = opener.next_chunk().unwrap() {
                    got.push(chunk);
                }
            }
            assert_eq!(got, chunks);
        }
    }

    #[test]
    fn what_was_changed_repeated_left_out_or_turned_round_is_refused() {
        let frames = |chunks: &[&[u8]], from: Side, key: &[u8]| {
            let mut sealer = secrets(key).sealer(from);
            let seal = |chunk: &&[u8]| {
                let mut out = Vec::new();
                sealer.seal(chunk, &mut out);
                out
            };
            chunks.iter().map(seal).collect::<Vec<_>>()
        };
        let open = |bytes: &[u8]| {
            let mut opener = secrets(b"k").opener(Side::Node);
            opener.feed(bytes);
            let mut n = 0;
            loop {
                match opener.next_chunk() {
                    Ok(Some(_)) => n += 1,
                    Ok(None) => return Ok(n),
                    Err(e) => return Err((n, e)),
                }
            }
        };
        let good = frames(&[b"one", b"two", b"three"], Side::Node, b"k");
        assert_eq!(open(&good.concat()), Ok(3));
        assert_eq!(open(&[&good[1][..], &good[0]].concat()), Err((0, FrameError::Seal)));
        assert_eq!(open(&[&good[0][..], &good[0]].concat()), Err((1, FrameError::Seal)));
        assert_eq!(open(&[&good[0][..], &good[2]].concat()), Err((1, FrameError::Seal)));
        assert_eq!(open(&frames(&[b"one"], Side::Agent, b"k")[0]), Err((0, FrameError::Seal)));
        assert_eq!(open(&frames(&[b"one"], Side::Node, b"other")[0]), Err((0, FrameError::Seal)));
        assert_eq!(open(&[0xff, 0xff, 0xff, 0xff]), Err((0, FrameError::Length(u32::MAX))));
        for at in 4..good[0].len() {
            let mut bad = good[0].clone();
            bad[at] ^= 0x10;
            assert_eq!(open(&bad), Err((0, FrameError::Seal)), "byte {at}");
        }
    }

    #[test]
    fn a_proof_is_of_one_side_one_key_and_these_greetings() {
        let a = secrets(b"k");
        assert_eq!(a.check(Side::Agent, &a.proof(Side::Agent)), Ok(()));
        for bad in [
            a.check(Side::Node, &a.proof(Side::Agent)),
            a.check(Side::Agent, &secrets(b"j").proof(Side::Agent)),
            a.check(Side::Agent, &Secrets::new(b"k", &hello([1; 32]), &hello([3; 32])).proof(Side::Agent)),
        ] {
            assert_eq!(bad, Err(FrameError::Proof));
        }
        let mut other = hello([1; 32]);
        assert_eq!(check(&other), Ok(()));
        other[8] = 9;
        assert_eq!(check(&other), Err(FrameError::Version(9)));
        other[0] = 0;
        assert_eq!(check(&other), Err(FrameError::Magic));
    }
}

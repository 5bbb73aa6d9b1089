// SPDX-License-Identifier: Apache-2.0
//! The inputs worth mutating, and the directory that keeps them.

use std::collections::HashSet;
use std::path::Path;

/// Inputs held at most; beyond that a new one takes the place of an old one.
const POOL_MAX: usize = 2000;

/// FNV-1a.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// Inputs and the outcomes seen.
pub struct Pool {
    inputs: Vec<Vec<u8>>,
    seen: HashSet<u64>,
}

impl Pool {
    /// What the corpus directory holds, in order of names, and the target's own seeds.
    pub fn new(corpus: &Path, seeds: Vec<Vec<u8>>) -> Pool {
        let mut files: Vec<_> = std::fs::read_dir(corpus).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort();
        let mut inputs: Vec<Vec<u8>> = files.iter().filter_map(|f| std::fs::read(f).ok()).collect();
        inputs.extend(seeds);
        if inputs.is_empty() {
            inputs.push(Vec::new());
        }
        Pool { inputs, seen: HashSet::new() }
    }

    /// A copy of all inputs.
    pub fn all(&self) -> Vec<Vec<u8>> {
        self.inputs.clone()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Inputs held.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Notes an outcome. True if it is new.
    pub fn saw(&mut self, signature: u64) -> bool {
        self.seen.insert(signature)
    }

    /// Takes an input in if its outcome is new.
    pub fn add(&mut self, signature: u64, input: &[u8]) -> bool {
        if !self.saw(signature) {
            return false;
        }
        if self.inputs.len() < POOL_MAX {
            self.inputs.push(input.to_vec());
        } else {
            let at = (signature % POOL_MAX as u64) as usize;
            self.inputs[at] = input.to_vec();
        }
        true
    }

    /// The input that a random number stands for.
    pub fn pick(&self, random: u64) -> &[u8] {
        &self.inputs[random as usize % self.inputs.len()]
    }
}

/// Writes an input to the corpus, unless it is too long to be kept or the corpus is large enough.
pub fn keep(corpus: &Path, input: &[u8]) -> std::io::Result<()> {
    const BYTES_MAX: usize = 1024;
    const FILES_MAX: usize = 16;
    std::fs::create_dir_all(corpus)?;
    if input.len() > BYTES_MAX || std::fs::read_dir(corpus)?.count() >= FILES_MAX {
        return Ok(());
    }
    std::fs::write(corpus.join(format!("{:016x}", hash(input))), input)
}

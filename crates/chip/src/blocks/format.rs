// SPDX-License-Identifier: Apache-2.0
//! Does a number of entries really fit into a number of SRAM words, byte for byte?
//!
//! Counting bits is not enough. A word has 16 bytes; each byte belongs to one entry's key at most, because the comparators
//! are switched to entries byte by byte. The two top bytes are switched nibble by nibble, which is where the 4 version
//! bits of an entry go if they find no free nibble in its own bytes or beside overhead. What is not compared (overhead:
//! immediate action data) must lie in the low 64 bits, since only those go on to the action engine. An entry that lies in
//! two words shares the hit lines of both, and a word has two such lines.

/// What is to be packed.
#[derive(Clone, Debug)]
pub struct Request {
    /// Bits to be compared of each byte of an entry's key; what the hash address already says is left out.
    pub bytes: Vec<u32>,
    /// Crossbar group of each byte: a word compares bytes of one group only if `wide`.
    pub groups: Vec<u8>,
    /// Overhead bits an entry.
    pub overhead: u32,
    /// Entries.
    pub entries: u32,
    /// Words.
    pub width: u32,
    /// Bytes of a word.
    pub word_bytes: usize,
    /// All entries' overhead lies in one word: entries have priorities (algorithmic TCAM).
    pub ranked: bool,
}

/// Version bits of an entry: matched as part of it, so that writing it is atomic.
pub const VERSION_BITS: u32 = 4;
const WORD_BYTES_MAX: usize = 16;
const OVERHEAD_BITS: u32 = 64;
const SHARED_MAX: u32 = 2;

/// One SRAM word while it is filled.
#[derive(Clone, Debug, Default)]
struct Word {
    used: u128,
    owned: [bool; WORD_BYTES_MAX],
    shared: u32,
    overhead_entries: u32,
    full: u32,
    /// Group whose bytes it compares; None: none (only overhead).
    group: Option<u8>,
}

impl Word {
    fn slice(&self, byte: usize) -> u8 {
        (self.used >> (8 * byte)) as u8
    }

    fn place(&mut self, byte: usize, mask: u8) {
        self.used |= u128::from(mask) << (8 * byte);
    }
}

/// Where the bytes of an entry went, to find a place for its version.
type Places = Vec<(usize, usize)>;

/// Whether it fits.
pub fn fits(r: &Request) -> bool {
    let bytes = r.word_bytes.min(WORD_BYTES_MAX);
    // Bytes that a gateway condition may want to share last; then tight.
    [(4, bytes.saturating_sub(2)), (0, bytes)].iter().enumerate().any(|(i, range)| attempt(r, *range, i == 1))
}

fn attempt(r: &Request, range: (usize, usize), tight: bool) -> bool {
    let wide = r.groups.iter().any(|g| *g != r.groups[0]) && r.width > 1;
    let Some(mut words) = start(r, wide) else { return false };
    if !overhead(r, &mut words) {
        return false;
    }
    let mut p = Packer { r, range, tight, wide };
    p.run(words)
}

/// Distributes the entries' overhead over the words and gives each word its group.
fn start(r: &Request, wide: bool) -> Option<Vec<Word>> {
    let mut words = vec![Word::default(); r.width as usize];
    if !wide {
        let groups = r.groups.first().copied();
        words.iter_mut().for_each(|w| w.group = groups);
        if r.ranked {
            words[0].overhead_entries = r.entries;
        } else {
            (0..r.entries as usize).for_each(|i| words[i % r.width as usize].overhead_entries += 1);
        }
        return Some(words);
    }
    // The group with the fewest bits shares its words with the overhead.
    let count = r.groups.iter().max().map_or(0, |m| m + 1);
    if u32::from(count) > r.width.div_ceil(r.entries) {
        return None;
    }
    let bits = |g: u8| -> u32 { r.groups.iter().zip(&r.bytes).filter(|(x, _)| **x == g).map(|(_, b)| *b).sum() };
    let mut order: Vec<u8> = (0..count).collect();
    order.sort_by_key(|g| (bits(*g), *g));
    let full = r.entries * (u32::from(count) - 1);
    let with_overhead = r.width.checked_sub(full)?.min(r.entries);
    let match_on_overhead = r.width - with_overhead <= full;
    if with_overhead == 0 || with_overhead * SHARED_MAX < r.entries || with_overhead > 1 && r.ranked {
        return None;
    }
    for i in 0..r.entries {
        words[(i % with_overhead) as usize].overhead_entries += 1;
    }
    let mut rest = order.iter().skip(usize::from(match_on_overhead));
    for (i, word) in words.iter_mut().enumerate() {
        if i < with_overhead as usize {
            word.group = match_on_overhead.then_some(order[0]);
        } else if (i - with_overhead as usize).is_multiple_of(r.entries as usize) {
            word.group = rest.next().copied();
        }
    }
    for i in 1..words.len() {
        if i > with_overhead as usize && words[i].group.is_none() {
            words[i].group = words[i - 1].group;
        }
    }
    Some(words)
}

/// Overhead lies at the bottom, entry behind entry, and must end before bit 64.
fn overhead(r: &Request, words: &mut [Word]) -> bool {
    words.iter_mut().all(|w| {
        let bits = w.overhead_entries * r.overhead;
        w.used = (1u128 << bits) - 1;
        bits == 0 || bits < OVERHEAD_BITS
    })
}

struct Packer<'a> {
    r: &'a Request,
    range: (usize, usize),
    tight: bool,
    wide: bool,
}

impl Packer<'_> {
    fn run(&mut self, mut words: Vec<Word>) -> bool {
        let empty = words.clone();
        let mut done = 0;
        let mut versions = 0;
        for i in 0..words.len() {
            let (full, with_version) = self.fill(&mut words, i, u32::MAX, versions);
            done += full;
            versions += with_version;
        }
        if self.wide {
            let bytes_done = words.iter().filter(|w| w.group.is_some()).map(|w| w.full).sum::<u32>();
            let groups = u32::from(self.r.groups.iter().max().map_or(0, |m| m + 1));
            return bytes_done >= groups * self.r.entries && versions >= self.r.entries;
        }
        if done == self.r.entries {
            return true;
        }
        self.tight && self.share_all(words, empty)
    }

    /// Puts whole entries into a word, at most `limit`; says how many, and of how many the version.
    fn fill(&self, words: &mut [Word], i: usize, limit: u32, versions: u32) -> (u32, u32) {
        let group = words[i].group;
        let most = match (self.wide, words[i].overhead_entries) {
            (true, 0) => 1,
            (_, n) => n,
        };
        let (mut full, mut with_version) = (0, 0);
        while full < most.min(limit) {
            let mut word = words[i].clone();
            let mut places = Places::new();
            let all = self.bytes(group).iter().all(|bits| self.byte(&mut word, i, *bits, &mut places));
            if !all {
                break;
            }
            let version = if self.wide && versions + with_version >= self.r.entries {
                true
            } else {
                let placed = self.version(&mut word, i, &places);
                with_version += u32::from(placed);
                placed
            };
            if !version && !self.wide {
                break;
            }
            word.full += 1;
            words[i] = word;
            full += 1;
        }
        (full, with_version)
    }

    /// Bytes of an entry in a group, those with most bits first.
    fn bytes(&self, group: Option<u8>) -> Vec<u32> {
        let both = self.r.groups.iter().zip(&self.r.bytes);
        let mut out: Vec<u32> = both.filter(|(g, b)| Some(**g) == group && **b > 0).map(|(_, b)| *b).collect();
        out.sort_unstable_by(|a, b| b.cmp(a));
        out
    }

    /// Places one byte. Ghosted bits are the low ones, so a partial byte keeps its high bits.
    fn byte(&self, word: &mut Word, i: usize, bits: u32, places: &mut Places) -> bool {
        let mask = 0xffu8 << (8 - bits.min(8));
        let order = (self.range.0..self.range.1).chain(0..self.range.0).chain(self.range.1..self.r.word_bytes);
        for at in order {
            if !word.owned[at] && word.slice(at) & mask == 0 {
                word.owned[at] = true;
                word.place(at, mask);
                places.push((i, at));
                return true;
            }
        }
        false
    }

    /// Places the version bits in word `i`.
    fn version(&self, word: &mut Word, i: usize, places: &Places) -> bool {
        for &(_, at) in places.iter().filter(|(w, _)| *w == i) {
            for nibble in [0x0f, 0xf0] {
                if word.slice(at) & nibble == 0 {
                    word.place(at, nibble);
                    return true;
                }
            }
        }
        for at in 0..8 {
            if !self.tight || word.owned[at] {
                continue;
            }
            let s = word.slice(at);
            let nibble = match (s & 0x0f, s & 0xf0) {
                (0, h) if h != 0 => 0x0f,
                (l, 0) if l != 0 => 0xf0,
                _ => continue,
            };
            word.place(at, nibble);
            word.owned[at] = true;
            return true;
        }
        let top = self.r.word_bytes - 2;
        for (at, nibble) in [(top, 0x0f), (top, 0xf0), (top + 1, 0x0f), (top + 1, 0xf0)] {
            if word.slice(at) & nibble == 0 {
                word.place(at, nibble);
                return true;
            }
        }
        for at in 0..self.r.word_bytes {
            if !word.owned[at] && word.slice(at) & 0x0f == 0 {
                word.place(at, 0x0f);
                word.owned[at] = true;
                return true;
            }
        }
        false
    }

    /// Entries that fit into no single word are spread over several. If that fails, whole entries are given up one by
    /// one from the last word on, which may leave better gaps.
    fn share_all(&self, filled: Vec<Word>, empty: Vec<Word>) -> bool {
        let mut full: Vec<u32> = filled.iter().map(|w| w.full).collect();
        if self.share(filled) {
            return true;
        }
        for i in (0..full.len()).rev() {
            if full[i] == 0 {
                continue;
            }
            full[i] -= 1;
            let mut words = empty.clone();
            for (j, limit) in full.iter().enumerate() {
                self.fill(&mut words, j, *limit, 0);
            }
            if self.share(words) {
                return true;
            }
        }
        false
    }

    fn share(&self, mut words: Vec<Word>) -> bool {
        struct Split {
            left: Vec<u32>,
            places: Places,
            version: bool,
        }
        let mut begun: Vec<Split> = Vec::new();
        let bytes = self.bytes(self.r.groups.first().copied());
        for i in 0..words.len() {
            let starting = (words[i].overhead_entries - words[i].full) as usize;
            if starting == 0 && begun.is_empty() {
                continue;
            }
            if starting + begun.len() > SHARED_MAX as usize {
                return false;
            }
            let old = begun.len();
            begun.extend((0..starting).map(|_| Split { left: bytes.clone(), places: Places::new(), version: false }));
            for (n, split) in begun.iter_mut().enumerate() {
                let first = if n < old { i } else { 0 };
                let mut touched = std::collections::BTreeSet::new();
                for (j, word) in words.iter_mut().enumerate().take(i + 1).skip(first) {
                    if word.shared == SHARED_MAX && j != i {
                        continue;
                    }
                    let places = &mut split.places;
                    split.left.retain(|bits| {
                        let placed = self.byte(word, j, *bits, places);
                        if placed {
                            touched.insert(j);
                        }
                        !placed
                    });
                }
                for (j, word) in words.iter_mut().enumerate().take(i + 1).skip(first) {
                    if !split.version && (word.shared < SHARED_MAX || j == i) && self.version(word, j, &split.places) {
                        split.version = true;
                        touched.insert(j);
                    }
                }
                if n >= old {
                    touched.insert(i);
                }
                touched.iter().for_each(|j| words[*j].shared += 1);
            }
            begun.retain(|s| !s.left.is_empty() || !s.version);
        }
        begun.is_empty()
    }
}

/// Leaves out of a key the bits that the row address already says: first of the crossbar group with the fewest bits,
/// since that one shares its words with the overhead; whole bytes with few bits first, then the low bits of one more.
pub fn ghost(bytes: &[u32], groups: &[u8], mut bits: u32) -> Vec<u32> {
    let size = |g: u8| -> u32 { groups.iter().zip(bytes).filter(|(x, _)| **x == g).map(|(_, b)| *b).sum() };
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|i| (size(groups[*i]), groups[*i], bytes[*i]));
    let mut out = bytes.to_vec();
    for i in order {
        let gone = out[i].min(bits);
        out[i] -= gone;
        bits -= gone;
    }
    out
}

// SPDX-License-Identifier: Apache-2.0
//! The VM-NC table in its forms.

use super::hash::{Full, HashTable, Shape, WAYS};
use super::key::mix;
use super::key::{Address, Map};

/// How addresses are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Whole keys: nothing is ever taken for something else.
    Whole {
        /// Entries of a row.
        pack: u32,
    },
    /// A digest; installed keys that share one are held whole.
    Digest {
        /// Bits.
        bits: u32,
        /// Entries of a row.
        pack: u32,
    },
    /// The Sailfish paper's: IPv6 addresses hashed to 32 bits, a label bit for the family; of keys that share all this the
    /// first is in the main table, the others are held whole.
    Label,
}

/// The table.
#[derive(Clone, Debug)]
pub struct Vms {
    form: Form,
    main: HashTable,
    /// Of the paper's form: what lies in the main table under a compressed key, and the keys held whole.
    owners: Map<Address, Address>,
    conflicts: Map<Address, u32>,
    salt: u64,
}

impl Vms {
    /// An empty table with room for so many entries at most (the ways round up).
    pub fn new(form: Form, places: u64, salt: u64) -> Vms {
        let (pack, digest) = match form {
            Form::Whole { pack } => (pack, None),
            Form::Digest { bits, pack } => (pack, Some(bits)),
            Form::Label => (2, None),
        };
        let rows = places.div_ceil(WAYS as u64 * u64::from(pack)) as u32;
        let main = HashTable::new(Shape { rows, pack, digest }, salt);
        Vms { form, main, owners: Map::default(), conflicts: Map::default(), salt: mix(salt ^ 0x1abe1) }
    }

    /// What the paper's form stores instead of the address.
    fn compressed(&self, key: &Address) -> Address {
        match key.v6 {
            false => *key,
            true => Address { addr: u128::from(Address { vni: 0, ..*key }.hash(self.salt) as u32), ..*key },
        }
    }

    /// What the chip finds.
    #[inline]
    pub fn lookup(&self, key: &Address) -> Option<u32> {
        if self.form != Form::Label {
            return self.main.lookup(key);
        }
        if key.v6 && !self.conflicts.is_empty() {
            if let Some(v) = self.conflicts.get(key) {
                return Some(*v);
            }
        }
        self.main.lookup(&self.compressed(key))
    }

    /// Installs an address or changes its value.
    pub fn insert(&mut self, key: Address, value: u32) -> Result<(), Full> {
        if self.form != Form::Label {
            return self.main.insert(key, value);
        }
        let short = self.compressed(&key);
        match self.owners.get(&short) {
            Some(owner) if *owner != key => {
                self.conflicts.insert(key, value);
                Ok(())
            }
            _ => {
                self.main.insert(short, value)?;
                self.owners.insert(short, key);
                Ok(())
            }
        }
    }

    /// Removes an address; its value if it was there. An address held whole may move into the place that gets free, but
    /// need not: it is left where it is.
    pub fn remove(&mut self, key: &Address) -> Option<u32> {
        if self.form != Form::Label {
            return self.main.remove(key);
        }
        if let Some(v) = self.conflicts.remove(key) {
            return Some(v);
        }
        let short = self.compressed(key);
        if self.owners.get(&short) != Some(key) {
            return None;
        }
        self.owners.remove(&short);
        self.main.remove(&short)
    }

    /// Addresses held whole.
    pub fn exceptions(&self) -> usize {
        self.conflicts.len() + self.main.exceptions()
    }

    /// Addresses.
    pub fn len(&self) -> usize {
        self.conflicts.len() + self.main.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries moved so far to make room for others.
    pub fn moves(&self) -> u64 {
        self.main.moves()
    }

    /// Entries over places.
    pub fn fill(&self) -> f64 {
        (self.main.len() - self.main.exceptions()) as f64 / self.main.places() as f64
    }

    /// The probability that an address that was never installed, drawn at random in a VPC with `in_vpc` IPv6 addresses, is
    /// taken for an installed one.
    pub fn false_match_probability(&self, in_vpc: u64) -> f64 {
        match self.form {
            Form::Whole { .. } => 0.0,
            // Every place of four rows is compared.
            Form::Digest { bits, pack } => {
                let compared = WAYS as f64 * f64::from(pack) * self.fill();
                1.0 - (1.0 - 1.0 / (1u64 << bits) as f64).powf(compared)
            }
            Form::Label => 1.0 - (1.0 - 1.0 / 4_294_967_296.0f64).powf(in_vpc as f64),
        }
    }
}

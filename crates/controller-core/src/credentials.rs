// SPDX-License-Identifier: Apache-2.0
//! Credentials: what proves that somebody is a Role. A token is known by its hash alone; a certificate by that of its bytes, after the
//! controller's CA has been found under it. Either ends at a time, and is revoked by deleting its record.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What a token begins with, so that it is known for one where it turns up.
pub const TOKEN: &str = "tunny_";
/// Days that a credential is good for at most.
pub const DAYS_MAX: u32 = 3650;
const DAY_MS: u64 = 86_400_000;

/// What a credential is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Sort {
    /// A word that is sent with each request.
    Token,
    /// A client certificate.
    Certificate,
}

/// A credential, as the store has it: nothing in it opens anything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Credential {
    /// The first digits of its hash, by which it is revoked.
    pub id: String,
    /// The Role.
    pub role: String,
    /// Token or certificate.
    pub sort: Sort,
    /// Made at, in milliseconds since 1970.
    pub made_ms: u64,
    /// Good until.
    pub until_ms: u64,
}

impl Credential {
    /// One for `days` from now.
    pub fn new(hash: &str, role: &str, sort: Sort, now_ms: u64, days: u32) -> Credential {
        let until_ms = now_ms + u64::from(days.min(DAYS_MAX)) * DAY_MS;
        Credential { id: hash.chars().take(12).collect(), role: role.into(), sort, made_ms: now_ms, until_ms }
    }

    /// Whether it is good at a time.
    pub fn holds(&self, sort: Sort, now_ms: u64) -> bool {
        self.sort == sort && now_ms < self.until_ms
    }
}

/// A token of random bytes.
pub fn token(random: &[u8; 32]) -> String {
    format!("{TOKEN}{}", hex(random))
}

/// The hash by which a token or a certificate is known. Tokens are random, so no slow hash is needed.
pub fn hash(secret: &[u8]) -> String {
    hex(&Sha256::digest(secret))
}

/// A hash as it is written.
pub fn hash_of(sum: Sha256) -> String {
    hex(&sum.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_ends_and_is_of_one_sort() {
        let token = token(&[7; 32]);
        assert_eq!(token.len(), TOKEN.len() + 64);
        let c = Credential::new(&hash(token.as_bytes()), "r", Sort::Token, 1000, 1);
        assert!(c.holds(Sort::Token, 1000) && c.holds(Sort::Token, 1000 + DAY_MS - 1));
        assert!(!c.holds(Sort::Token, 1000 + DAY_MS) && !c.holds(Sort::Certificate, 1000));
        assert_eq!(c.id.len(), 12);
        assert!(!serde_json::to_string(&c).unwrap().contains(&token));
    }
}

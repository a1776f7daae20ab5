//! API keys.

use axum::http::{HeaderMap, HeaderValue, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// The keys that open the server.
pub(crate) struct Keys {
    /// Digests, so that comparing takes the same time whatever the lengths.
    digests: Vec<[u8; 32]>,
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self {
            digests: keys.iter().map(|key| digest(key.as_bytes())).collect(),
        }
    }

    /// Whether a key is needed at all.
    pub(crate) fn closed(&self) -> bool {
        !self.digests.is_empty()
    }

    /// Which key a request carries, as OpenAI's, Anthropic's or Azure's clients send it.
    pub(crate) fn find(&self, headers: &HeaderMap) -> Option<usize> {
        let bearer = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let bearer = bearer.and_then(|value| {
            let (scheme, key) = value.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let named = |name| headers.get(name).map(HeaderValue::as_bytes);
        let given = bearer
            .or_else(|| named("x-api-key"))
            .or_else(|| named("api-key"))?;
        self.matching(given.trim_ascii())
    }

    /// Looks at every key, so that the time tells nothing about which one was close.
    fn matching(&self, given: &[u8]) -> Option<usize> {
        let given = digest(given);
        let mut found = Choice::from(0);
        let mut index = 0u64;
        for (number, digest) in self.digests.iter().enumerate() {
            let equal = digest.ct_eq(&given);
            index.conditional_assign(&(number as u64), equal);
            found |= equal;
        }
        bool::from(found).then_some(index as usize)
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(header: &'static str, value: &'static str) -> Option<usize> {
        let keys = Keys::new(&["alpha".to_owned(), "beta".to_owned()]);
        let mut headers = HeaderMap::new();
        headers.insert(header, HeaderValue::from_static(value));
        keys.find(&headers)
    }

    #[test]
    fn keys_are_found_wherever_clients_put_them() {
        assert_eq!(find("authorization", "Bearer beta"), Some(1));
        assert_eq!(find("authorization", "bearer alpha"), Some(0));
        assert_eq!(find("x-api-key", "beta"), Some(1));
        assert_eq!(find("api-key", "alpha"), Some(0));
    }

    #[test]
    fn other_keys_do_not_open() {
        for value in ["Bearer ", "Bearer bet", "Bearer betax", "beta", "Basic beta", ""] {
            assert_eq!(find("authorization", value), None, "{value}");
        }
        assert!(!Keys::new(&[]).closed());
    }
}

//! Which requests share cached prefixes: only those with the same salt.
//!
//! A prefix that is cached shows in the time to the first token and in `cached_tokens`. So a key that shares the cache with
//! others could find out what they sent, a block at a time.

use crate::config::PrefixCacheScope;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// Salts of requests. They are secret, so that no `cache_salt` can be made to equal that of another key.
pub(crate) struct PrefixSalts {
    scope: PrefixCacheScope,
    secret: RandomState,
}

impl PrefixSalts {
    pub(crate) fn new(scope: PrefixCacheScope) -> Self {
        Self {
            scope,
            secret: RandomState::new(),
        }
    }

    /// The salt of a tenant's request with this `cache_salt`.
    pub(crate) fn salt(&self, tenant: u32, cache_salt: Option<&str>) -> u64 {
        let tenant = match self.scope {
            PrefixCacheScope::Key => tenant,
            PrefixCacheScope::All => 0,
        };
        self.secret.hash_one((tenant, cache_salt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salts_separate_what_the_scope_separates() {
        let key = PrefixSalts::new(PrefixCacheScope::Key);
        assert_eq!(key.salt(1, None), key.salt(1, None));
        assert_ne!(key.salt(1, None), key.salt(2, None));
        assert_ne!(key.salt(1, Some("a")), key.salt(2, Some("a")));
        assert_ne!(key.salt(1, Some("a")), key.salt(1, None));
        let all = PrefixSalts::new(PrefixCacheScope::All);
        assert_eq!(all.salt(1, None), all.salt(2, None));
        assert_eq!(all.salt(1, Some("a")), all.salt(2, Some("a")));
        assert_ne!(all.salt(1, Some("a")), all.salt(1, Some("b")));
        assert_ne!(
            all.salt(1, None),
            PrefixSalts::new(PrefixCacheScope::All).salt(1, None)
        );
    }
}

//! Where a server is.

use crate::error::ClientError;
use reqwest::Url;

/// The address of a server, with or without the `/v1` that clients of OpenAI's interface carry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// Without a slash at its end, and without `/v1`.
    root: String,
}

impl Address {
    pub(crate) fn new(url: &str) -> Result<Self, ClientError> {
        let refuse = |reason: &str| ClientError::Address {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let trimmed = url.trim().trim_end_matches('/');
        match trimmed.split_once("://") {
            Some(("http" | "https", _)) => {}
            Some(_) => return Err(refuse("only http and https are known")),
            None => return Err(refuse("it does not start with http:// or https://")),
        }
        let parsed = Url::parse(trimmed).map_err(|error| refuse(&error.to_string()))?;
        if parsed.query().is_some() {
            return Err(refuse("it has a query"));
        }
        let root = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        Ok(Self {
            root: root.trim_end_matches('/').to_owned(),
        })
    }

    /// The address itself.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The address of a path, which starts with a slash.
    pub(crate) fn of(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_slashes_at_the_end_change_nothing() {
        let of = |url: &str| Address::new(url).unwrap().of("/v1/models");
        for url in [
            "http://a:1",
            "http://a:1/",
            "http://a:1/v1",
            "http://a:1/v1/",
            " http://a:1 ",
        ] {
            assert_eq!(of(url), "http://a:1/v1/models", "{url}");
        }
        assert_eq!(of("https://a/deep/v1"), "https://a/deep/v1/models");
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (url, reason) in [
            ("127.0.0.1:8000", "start with http"),
            ("localhost", "start with http"),
            ("ftp://a", "only http"),
            ("http://a/?b", "query"),
            ("", "not the address"),
        ] {
            let error = Address::new(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }
}

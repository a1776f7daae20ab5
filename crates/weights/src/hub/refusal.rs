//! What the hub means when it refuses: its status, and the code and the message that it sends along.

use std::time::Duration;

use reqwest::blocking::Response;

use super::client::header;
use super::{HubConfig, HubError};

/// The message of the hub for a token that it does not know, whatever was asked for.
const BAD_TOKEN: &str = "Invalid credentials in Authorization header";
/// Most characters of the hub's own words that are shown.
const MOST_WORDS: usize = 200;

/// An answer other than success.
pub(super) struct Refusal<'a> {
    pub(super) status: u16,
    /// `X-Error-Code`: `GatedRepo`, `RepoNotFound`, `RevisionNotFound`, `EntryNotFound`.
    code: &'a str,
    /// `X-Error-Message`.
    message: &'a str,
    /// How long the hub asks to be left alone.
    pub(super) wait: Option<Duration>,
}

impl<'a> Refusal<'a> {
    /// The refusal in an answer, if it is one.
    pub(super) fn of(answer: &'a Response) -> Option<Self> {
        let text = |name| header(answer, name).unwrap_or_default();
        let seconds = header(answer, "retry-after").and_then(|seconds| seconds.trim().parse().ok());
        let wait = seconds.or_else(|| seconds_to_reset(header(answer, "ratelimit")?));
        (!answer.status().is_success()).then(|| Self {
            status: answer.status().as_u16(),
            code: text("x-error-code"),
            message: text("x-error-message"),
            wait: wait.map(Duration::from_secs),
        })
    }

    /// The error to report when `repo`, or `what` of it, was asked for.
    pub(super) fn about(&self, what: &str, repo: &str, config: &HubConfig) -> HubError {
        let (what, endpoint) = (what.to_owned(), config.endpoint.clone());
        let has_token = config.token.is_some();
        match (self.status, self.code) {
            (_, "RepoNotFound") | (404, _) => HubError::NotFound {
                what,
                endpoint,
                advice: self.what_is_missing(has_token),
            },
            (401 | 403, _) => HubError::Denied {
                what,
                status: self.status,
                advice: self.what_gives_access(repo, config),
                endpoint,
            },
            (429, _) => HubError::Limited {
                what,
                endpoint,
                wait: self.wait,
                advice: if has_token {
                    ""
                } else {
                    ", or set HF_TOKEN: with a token the limit is higher"
                },
            },
            (status, _) => HubError::Status {
                what,
                endpoint,
                status,
                words: self.words(),
            },
        }
    }

    fn what_is_missing(&self, has_token: bool) -> &'static str {
        match self.code {
            "RevisionNotFound" => "the repository has no such branch, tag or commit",
            "EntryNotFound" => "the repository has no such file",
            _ if has_token => "check its name there; if it is private, the token in use has no access to it",
            _ => "check its name there, and set HF_TOKEN if it is private",
        }
    }

    fn what_gives_access(&self, repo: &str, config: &HubConfig) -> String {
        let has_token = config.token.is_some();
        let page = format!("{}/{repo}", config.endpoint);
        match self.code {
            "GatedRepo" if has_token => {
                format!("accept its terms at {page} with the account of the token in use")
            }
            "GatedRepo" => {
                format!("accept its terms at {page}, then set HF_TOKEN to a token of the same account")
            }
            _ if has_token && self.message == BAD_TOKEN => {
                "the token in use is not valid; set HF_TOKEN to one that is (public models need none)".to_owned()
            }
            _ if self.message.contains("disabled") => "the hub has disabled it".to_owned(),
            _ if has_token => {
                "the token in use has no access; accept the model's terms on its page, or set HF_TOKEN to a token \
                 that has access"
                    .to_owned()
            }
            _ => "it is private, needs its terms accepted, or does not exist; set HF_TOKEN to a token that has \
                  access"
                .to_owned(),
        }
    }

    /// What the hub says in its own words, starting with punctuation, or nothing.
    fn words(&self) -> String {
        let words: String = self.message.chars().take(MOST_WORDS).collect();
        let plain = !words.is_empty() && !words.contains(char::is_control);
        if plain {
            format!(": {words}")
        } else {
            String::new()
        }
    }
}

/// The seconds until more is allowed, as in `"api";r=0;t=42`.
fn seconds_to_reset(limit: &str) -> Option<u64> {
    let mut parts = limit.split(';').map(str::trim);
    parts.find_map(|part| part.strip_prefix("t=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::seconds_to_reset;

    #[test]
    fn the_time_until_more_is_allowed_is_read() {
        assert_eq!(seconds_to_reset("\"resolvers\";r=0;t=42"), Some(42));
        assert_eq!(seconds_to_reset("\"api\"; r=0; t=7"), Some(7));
        assert_eq!(seconds_to_reset("\"api\";r=0"), None);
        assert_eq!(seconds_to_reset("t=-1"), None);
    }
}

//! Where the hub is and how to talk to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the hub client.
#[derive(Clone, PartialEq, Eq)]
pub struct HubConfig {
    /// The address of the hub, without a trailing slash.
    pub endpoint: String,
    /// The folder of the cache, the one that holds `models--org--name` folders.
    pub cache_dir: PathBuf,
    /// The access token, for private and gated models.
    pub token: Option<String>,
    /// Whether to use the cache alone.
    pub offline: bool,
    /// How often to try again when one transfer after another fails without a byte having arrived; 0 never tries again.
    pub retries: u32,
    /// How long to wait before the first retry; each further one waits twice as long.
    pub retry_delay: Duration,
}

impl HubConfig {
    /// Settings from the environment variables that the other tools of the hub use:
    ///
    /// | variable | meaning |
    /// |---|---|
    /// | `HF_ENDPOINT` | address of the hub, `https://huggingface.co` by default |
    /// | `HF_HUB_CACHE` | folder of the cache, `$HF_HOME/hub` by default |
    /// | `HF_HOME` | parent of cache and token file, `~/.cache/huggingface` by default (`$XDG_CACHE_HOME` is followed) |
    /// | `HF_TOKEN` | access token; else the contents of the file `HF_TOKEN_PATH`, `$HF_HOME/token` by default |
    /// | `HF_HUB_OFFLINE` | `1`: use the cache alone |
    pub fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// How long to wait after this many failures, one after another.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        self.retry_delay * (1 << failures.saturating_sub(1).min(6))
    }

    /// Settings from variables given by `lookup`.
    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let lookup = |name: &str| {
            lookup(name)
                .map(|value| value.trim().to_owned())
                .filter(|v| !v.is_empty())
        };
        let path = |name: &str| lookup(name).map(PathBuf::from);
        let hf_home = path("HF_HOME").unwrap_or_else(|| {
            let home = || {
                path("HOME")
                    .or_else(|| path("USERPROFILE"))
                    .unwrap_or_default()
                    .join(".cache")
            };
            path("XDG_CACHE_HOME").unwrap_or_else(home).join("huggingface")
        });
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| hf_home.join("token"));
        let stored_token = || {
            let token = std::fs::read_to_string(token_file).ok()?.trim().to_owned();
            Some(token).filter(|token| !token.is_empty())
        };
        let endpoint = lookup("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let truthy = |value: String| matches!(value.to_lowercase().as_str(), "1" | "true" | "yes" | "on");
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache_dir: path("HF_HUB_CACHE").unwrap_or_else(|| hf_home.join("hub")),
            token: lookup("HF_TOKEN").or_else(stored_token),
            offline: lookup("HF_HUB_OFFLINE").is_some_and(truthy),
            retries: 5,
            retry_delay: Duration::from_millis(500),
        }
    }
}

// Written by hand so that the token cannot end up in a log.
impl fmt::Debug for HubConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubConfig")
            .field("endpoint", &self.endpoint)
            .field("cache_dir", &self.cache_dir)
            .field("token", &self.token.as_ref().map(|_| "set"))
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(vars: &[(&str, &str)]) -> HubConfig {
        let find = |name: &str| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        HubConfig::from_lookup(find)
    }

    #[test]
    fn the_defaults_are_those_of_the_hub() {
        let config = config(&[("HOME", "/home/ada")]);
        assert_eq!(config.endpoint, "https://huggingface.co");
        assert_eq!(
            config.cache_dir,
            PathBuf::from("/home/ada/.cache/huggingface/hub")
        );
        assert_eq!((config.token, config.offline), (None, false));
    }

    #[test]
    fn each_variable_is_followed() {
        assert_eq!(
            config(&[("XDG_CACHE_HOME", "/x")]).cache_dir,
            PathBuf::from("/x/huggingface/hub")
        );
        assert_eq!(
            config(&[("HF_HOME", "/hf"), ("HOME", "/h")]).cache_dir,
            PathBuf::from("/hf/hub")
        );
        assert_eq!(
            config(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/hf")]).cache_dir,
            PathBuf::from("/c")
        );
        assert_eq!(
            config(&[("HF_ENDPOINT", "http://mirror/")]).endpoint,
            "http://mirror"
        );
        assert!(config(&[("HF_HUB_OFFLINE", "1")]).offline);
        assert!(!config(&[("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn the_token_comes_from_the_variable_or_the_file_and_is_not_printed() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().to_str().unwrap();
        assert_eq!(config(&[("HF_HOME", path)]).token, None);
        std::fs::write(home.path().join("token"), "hf_file\n").unwrap();
        assert_eq!(config(&[("HF_HOME", path)]).token.as_deref(), Some("hf_file"));
        let both = config(&[("HF_HOME", path), ("HF_TOKEN", "hf_variable")]);
        assert_eq!(both.token.as_deref(), Some("hf_variable"));
        assert!(!format!("{both:?}").contains("hf_variable"));
    }
}

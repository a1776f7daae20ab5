//! Requests to the hub and what its answers mean.

use std::time::Duration;

use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::id::{is_commit, is_relative_path};
use super::{HubConfig, HubError, HubModel};

/// Most bytes accepted for the description of a repository.
const MAX_LISTING: u64 = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection on which nothing arrives for this long counts as broken.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_REDIRECTS: u32 = 5;

/// Speaks to one hub.
pub(super) struct Client<'a> {
    pub(super) config: &'a HubConfig,
    agent: Agent,
}

/// The files of a repository at one commit.
pub(super) struct Listing {
    pub(super) commit: String,
    /// Sorted, and only such as stay inside the folder they are put in.
    pub(super) files: Vec<String>,
}

/// What the hub says about one file.
pub(super) struct FileInfo {
    /// Where the file was found, after redirects within the hub.
    pub(super) url: String,
    /// Names the contents; safe to use as a file name.
    pub(super) etag: String,
    pub(super) size: Option<u64>,
}

impl FileInfo {
    /// The SHA-256 of the contents: the entity tag, for files in large file storage.
    pub(super) fn sha256(&self) -> Option<&str> {
        let is_hash = self.etag.len() == 64 && self.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then_some(self.etag.as_str())
    }
}

impl<'a> Client<'a> {
    pub(super) fn new(config: &'a HubConfig) -> Self {
        let agent = Agent::config_builder()
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // The hub sends large files to other hosts, which must not see the token.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .build();
        Self {
            config,
            agent: agent.into(),
        }
    }

    /// Asks which files the model's repository has.
    pub(super) fn listing(&self, model: &HubModel) -> Result<Listing, HubError> {
        let HubModel { repo, revision, .. } = model;
        let revision = encode(revision).replace('/', "%2F");
        let url = format!("{}/api/models/{repo}/revision/{revision}", self.config.endpoint);
        let what = HubModel {
            file: None,
            ..model.clone()
        }
        .to_string();
        let answer = self.authorised(self.agent.get(&url)).call();
        let mut answer = answer.map_err(|cause| self.unreachable(&what, &cause))?;
        self.check_status(&what, answer.status().as_u16())?;
        let body = answer.body_mut().with_config().limit(MAX_LISTING).read_to_vec();
        let body = body.map_err(|cause| self.unreachable(&what, &cause))?;
        let body: Value =
            serde_json::from_slice(&body).map_err(|cause| self.bad_answer(&what, cause.to_string()))?;
        let commit = body["sha"].as_str().filter(|sha| is_commit(sha));
        let commit = commit.ok_or_else(|| self.bad_answer(&what, "no commit id in `sha`".to_owned()))?;
        let files = body["siblings"].as_array().into_iter().flatten();
        let names = files.filter_map(|file| file["rfilename"].as_str());
        let mut files: Vec<_> = names
            .filter(|name| is_relative_path(name))
            .map(str::to_owned)
            .collect();
        files.sort_unstable();
        Ok(Listing {
            commit: commit.to_owned(),
            files,
        })
    }

    /// Asks about one file without fetching it.
    pub(super) fn file_info(&self, model: &HubModel, commit: &str, file: &str) -> Result<FileInfo, HubError> {
        let what = format!("{file} of {}", model.repo);
        let mut url = format!(
            "{}/{}/resolve/{commit}/{}",
            self.config.endpoint,
            model.repo,
            encode(file)
        );
        let mut hops = 0;
        let answer = loop {
            let request = self.authorised(self.agent.head(&url));
            let request = request
                .config()
                .max_redirects(0)
                .max_redirects_will_error(false)
                .build();
            let answer = request.call().map_err(|cause| self.unreachable(&what, &cause))?;
            let moved = answer
                .status()
                .is_redirection()
                .then(|| header(&answer, "location"))
                .flatten();
            // Redirects within the hub lead to the answer about the file; those to storage come with it.
            match moved.filter(|place| place.starts_with('/') && hops < MAX_REDIRECTS) {
                Some(place) => url = format!("{}{place}", origin(&url)),
                None => break answer,
            }
            hops += 1;
        };
        let status = answer.status();
        if !status.is_redirection() {
            self.check_status(&what, status.as_u16())?;
        }
        let etag = header(&answer, "x-linked-etag").or_else(|| header(&answer, "etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let safe = |etag: &String| {
            etag.len() <= 128
                && etag
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        let etag = etag.filter(|etag| !etag.is_empty() && safe(etag));
        let etag = etag.ok_or_else(|| self.bad_answer(&what, "no usable entity tag".to_owned()))?;
        let length = header(&answer, "content-length").filter(|_| status.is_success());
        let size = header(&answer, "x-linked-size")
            .or(length)
            .and_then(|size| size.parse().ok());
        Ok(FileInfo { url, etag, size })
    }

    /// Begins to fetch a file from byte `start` on.
    pub(super) fn open(&self, url: &str, start: u64) -> Result<Response<Body>, ureq::Error> {
        let mut request = self.authorised(self.agent.get(url));
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        request.call()
    }

    fn authorised<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.config.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Turns a status other than success into an error about `what`.
    pub(super) fn check_status(&self, what: &str, status: u16) -> Result<(), HubError> {
        let (what, endpoint) = (what.to_owned(), self.config.endpoint.clone());
        match status {
            200..300 => Ok(()),
            404 => Err(HubError::NotFound { what, endpoint }),
            401 | 403 => {
                let advice = match &self.config.token {
                    Some(_) => {
                        "the token in use has no access; accept the model's terms on its page, or set HF_TOKEN to \
                         a token that has access"
                    }
                    None => {
                        "it is private, needs its terms accepted, or does not exist; set HF_TOKEN to a token that \
                         has access"
                    }
                };
                Err(HubError::Denied {
                    what,
                    endpoint,
                    status,
                    advice,
                })
            }
            _ => Err(HubError::Status {
                what,
                endpoint,
                status,
            }),
        }
    }

    fn unreachable(&self, what: &str, cause: &ureq::Error) -> HubError {
        let (what, endpoint) = (what.to_owned(), self.config.endpoint.clone());
        HubError::Unreachable {
            what,
            endpoint,
            cause: cause.to_string(),
        }
    }

    fn bad_answer(&self, what: &str, problem: String) -> HubError {
        HubError::BadAnswer {
            what: what.to_owned(),
            endpoint: self.config.endpoint.clone(),
            problem,
        }
    }
}

/// A header's value, if it is there and is text.
pub(super) fn header<'r>(answer: &'r Response<Body>, name: &str) -> Option<&'r str> {
    answer.headers().get(name)?.to_str().ok()
}

/// The scheme and host of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    url[host..].find('/').map_or(url, |path| &url[..host + path])
}

/// Escapes what may not stand in the path of an address; slashes stay.
fn encode(path: &str) -> String {
    path.bytes().fold(String::with_capacity(path.len()), |out, byte| {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
        out + &if plain {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_escaped() {
        assert_eq!(origin("https://hub.example:1/a/b"), "https://hub.example:1");
        assert_eq!(origin("http://hub"), "http://hub");
        assert_eq!(encode("a b/ü%.gguf"), "a%20b/%C3%BC%25.gguf");
    }
}

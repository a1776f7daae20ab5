//! Requests to the hub and what its answers mean.

use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::{Client as Http, RequestBuilder, Response};
use reqwest::redirect::Policy;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use super::id::{is_commit, is_relative_path};
use super::refusal::Refusal;
use super::{HubConfig, HubError, HubModel};

/// Most bytes accepted for the description of a repository.
const MAX_LISTING: u64 = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection on which nothing arrives for this long counts as broken.
const READ_TIMEOUT: Duration = Duration::from_mins(1);
const MAX_REDIRECTS: usize = 5;
/// A hub that wants to be left alone for longer is not waited for: the message says for how long.
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Speaks to one hub.
pub(super) struct Client<'a> {
    pub(super) config: &'a HubConfig,
    /// Follows redirects. The hub sends large files to other hosts, which do not see the token.
    following: Http,
    /// Does not: the answer that redirects is the one that says what a file is.
    staying: Http,
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
    pub(super) fn new(config: &'a HubConfig) -> Result<Self, HubError> {
        let unusable = |cause: &(dyn Error + 'static)| HubError::Connections {
            cause: innermost(cause),
        };
        let tls = tls().map_err(|cause| unusable(&cause))?;
        let http = |redirects| {
            Http::builder()
                .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
                .redirect(redirects)
                .connect_timeout(CONNECT_TIMEOUT)
                // Of an answer's beginning, and of each read after it.
                .timeout(READ_TIMEOUT)
                .tls_backend_preconfigured(tls.clone())
                .build()
                .map_err(|cause| unusable(&cause))
        };
        Ok(Self {
            config,
            following: http(Policy::limited(MAX_REDIRECTS))?,
            staying: http(Policy::none())?,
        })
    }

    /// Asks which files the model's repository has, again where the hub has a bad moment. A hub that is not there is not
    /// waited for.
    pub(super) fn listing(&self, model: &HubModel) -> Result<Listing, HubError> {
        self.retrying(
            || self.ask_listing(model),
            |error| error.is_passing() && !matches!(error, HubError::Unreachable { .. }),
        )
    }

    /// Asks about one file without fetching it, again where the hub has a bad moment.
    pub(super) fn file_info(&self, model: &HubModel, commit: &str, file: &str) -> Result<FileInfo, HubError> {
        self.retrying(|| self.ask_file_info(model, commit, file), HubError::is_passing)
    }

    /// Asks as often as the configuration allows while the error is one that `passes`.
    fn retrying<T>(
        &self,
        ask: impl Fn() -> Result<T, HubError>,
        passes: impl Fn(&HubError) -> bool,
    ) -> Result<T, HubError> {
        let mut failures = 0;
        loop {
            let error = match ask() {
                Err(error) if passes(&error) && failures < self.config.retries => error,
                answer => return answer,
            };
            failures += 1;
            match self.pause(failures, error.wait()) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(error),
            }
        }
    }

    /// How long to wait after this many failures in a row, the last of which asks for `wait`; none if that is too long.
    pub(super) fn pause(&self, failures: u32, wait: Option<Duration>) -> Option<Duration> {
        let pause = self.config.pause(failures).max(wait.unwrap_or_default());
        wait.is_none_or(|wait| wait <= LONGEST_WAIT).then_some(pause)
    }

    fn ask_listing(&self, model: &HubModel) -> Result<Listing, HubError> {
        let HubModel { repo, revision, .. } = model;
        let revision = encode(revision).replace('/', "%2F");
        let url = format!("{}/api/models/{repo}/revision/{revision}", self.config.endpoint);
        let what = model.whole().to_string();
        let answer = self.authorised(self.following.get(&url), &url).send();
        let answer = answer.map_err(|cause| self.unreachable(&what, &cause))?;
        self.expect_success(&what, repo, &answer)?;
        let mut body = Vec::new();
        let read = answer.take(MAX_LISTING + 1).read_to_end(&mut body);
        read.map_err(|cause| self.unreachable(&what, &cause))?;
        if body.len() as u64 > MAX_LISTING {
            return Err(self.bad_answer(&what, format!("it has more than {MAX_LISTING} bytes")));
        }
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

    fn ask_file_info(&self, model: &HubModel, commit: &str, file: &str) -> Result<FileInfo, HubError> {
        let what = format!("{file} of {}", model.repo);
        let mut url = format!(
            "{}/{}/resolve/{commit}/{}",
            self.config.endpoint,
            model.repo,
            encode(file)
        );
        let mut hops = 0;
        let answer = loop {
            let answer = self.authorised(self.staying.head(&url), &url);
            let answer = answer.header("accept-encoding", "identity").send();
            let answer = answer.map_err(|cause| self.unreachable(&what, &cause))?;
            match next_place(&url, &answer).filter(|_| hops < MAX_REDIRECTS) {
                Some(place) => url = place,
                None => break answer,
            }
            hops += 1;
        };
        let status = answer.status();
        if !status.is_redirection() {
            self.expect_success(&what, &model.repo, &answer)?;
        }
        if let Some(other) = header(&answer, "x-repo-commit").filter(|other| *other != commit) {
            return Err(self.bad_answer(&what, format!("it is about commit {other}, not {commit}")));
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
    pub(super) fn open(&self, url: &str, start: u64) -> Result<Response, reqwest::Error> {
        // As it is: a size and a hash are those of the file.
        let mut request = self.authorised(self.following.get(url), url);
        request = request.header("accept-encoding", "identity");
        if start > 0 {
            request = request.header("range", format!("bytes={start}-"));
        }
        request.send()
    }

    /// Adds the token, which nobody but the hub gets to see.
    fn authorised(&self, request: RequestBuilder, url: &str) -> RequestBuilder {
        match &self.config.token {
            Some(token) if origin(url) == origin(&self.config.endpoint) => request.bearer_auth(token),
            _ => request,
        }
    }

    /// Turns an answer other than success into an error about `what` of `repo`.
    pub(super) fn expect_success(&self, what: &str, repo: &str, answer: &Response) -> Result<(), HubError> {
        match Refusal::of(answer) {
            Some(refusal) => Err(refusal.about(what, repo, self.config)),
            None => Ok(()),
        }
    }

    fn unreachable(&self, what: &str, cause: &(dyn Error + 'static)) -> HubError {
        let (what, endpoint) = (what.to_owned(), self.config.endpoint.clone());
        HubError::Unreachable {
            what,
            endpoint,
            cause: innermost(cause),
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

/// Trust in the authorities of Mozilla's list, wherever the program runs.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The cause at the bottom: what is above it says only that there was an error.
pub(super) fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(below) = cause.source() {
        cause = below;
    }
    cause.to_string()
}

/// A header's value, if it is there and is text.
pub(super) fn header<'r>(answer: &'r Response, name: &str) -> Option<&'r str> {
    answer.headers().get(name)?.to_str().ok()
}

/// Where the answer about a file is, if not here. A redirect within the hub leads to it; one to storage comes with it, and
/// storage answers nothing but the request for the contents.
fn next_place(url: &str, answer: &Response) -> Option<String> {
    let told = header(answer, "x-linked-etag").is_some();
    let location = header(answer, "location").filter(|_| answer.status().is_redirection() && !told)?;
    let place: String = Url::parse(url).ok()?.join(location).ok()?.into();
    let stays = origin(&place) == origin(url);
    (stays || header(answer, "etag").is_none()).then_some(place)
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

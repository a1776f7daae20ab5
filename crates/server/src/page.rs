//! The page at `/`: the files of `web/dist`, which are part of the binary. They are the same for everybody and tell
//! nothing of the server, so they need no key; what the page asks for does.

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// What the page may do: run its own script, wear its own style, talk to its own server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A file of the page.
struct PageFile {
    path: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
    version: OnceLock<String>,
}

macro_rules! page_file {
    ($path:literal, $name:literal, $kind:literal) => {
        PageFile {
            path: $path,
            kind: $kind,
            plain: include_bytes!(concat!("../../../web/dist/", $name)),
            gzip: include_bytes!(concat!("../../../web/dist/", $name, ".gz")),
            version: OnceLock::new(),
        }
    };
}

static FILES: [PageFile; 5] = [
    page_file!("/", "index.html", "text/html; charset=utf-8"),
    page_file!("/app.js", "app.js", "text/javascript; charset=utf-8"),
    page_file!("/app.css", "app.css", "text/css; charset=utf-8"),
    page_file!("/icon.svg", "icon.svg", "image/svg+xml"),
    page_file!("/licences.txt", "licences.txt", "text/plain; charset=utf-8"),
];

/// Whether a path is one of the page's files.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// Adds the files to the paths of the server.
pub(crate) fn add<S: Clone + Send + Sync + 'static>(router: Router<S>) -> Router<S> {
    FILES.iter().fold(router, |router, file| {
        let answer = move |request: Request| async move { file.answer(&request) };
        router.route(file.path, get(answer))
    })
}

impl PageFile {
    /// The start of its content's digest. `index.html` names the other files with it, so that they need not be asked for
    /// again until they change.
    fn version(&self) -> &str {
        self.version.get_or_init(|| {
            let digest = Sha256::digest(self.plain);
            let start = digest[..8]
                .iter()
                .fold(0, |start, byte| start << 8 | u64::from(*byte));
            format!("{start:016x}")
        })
    }

    fn answer(&self, request: &Request) -> Response {
        let version = self.version();
        let tag = format!("W/\"{version}\"");
        let asked = request.uri().query().and_then(|query| query.strip_prefix("v="));
        let caching = if asked == Some(version) {
            "public, max-age=31536000, immutable"
        } else {
            "no-cache"
        };
        let known = request.headers().get(header::IF_NONE_MATCH);
        let known = known.is_some_and(|tags| tags.to_str().is_ok_and(|tags| names(tags, &tag)));
        let gzip = takes_gzip(request.headers());
        let content = if gzip { self.gzip } else { self.plain };
        let mut response = Response::new(Body::from(if known { &[][..] } else { content }));
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        for (name, value) in [
            (header::CONTENT_TYPE, self.kind),
            (header::CACHE_CONTROL, caching),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            (header::VARY, "accept-encoding"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        if gzip && !known {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

/// Whether a list of tags has this one, or any.
fn names(tags: &str, tag: &str) -> bool {
    tags.split(',').map(str::trim).any(|one| one == tag || one == "*")
}

/// Whether the client reads gzip.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING);
    let accepted = accepted.and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = weight
            .trim()
            .strip_prefix("q=")
            .is_some_and(|q| q.parse() == Ok(0.0_f32));
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

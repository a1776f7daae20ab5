//! A small HTTP server that plays the hub as it is: it answers for the repository `org/name`, formerly `org/old` (and by
//! any other names that it is given), serves small files from a cache that it redirects to, and sends the client to storage
//! under another host name for large ones. Storage knows signed addresses and nothing else: it refuses tokens, and says
//! nothing about a file.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use paceline_weights::hub::HubConfig;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The commit that the server's one repository is at.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Files from this size on live in storage.
const LARGE: usize = 100;

/// One request the server saw.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
    pub(crate) encoding: Option<String>,
    /// The address the client used, to tell the hub from its storage.
    pub(crate) host: String,
}

/// A refusal in the hub's manner.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) status: &'static str,
    /// `X-Error-Code` and `X-Error-Message`, unless empty.
    pub(crate) code: &'static str,
    pub(crate) message: &'static str,
}

/// Where the repository went that was `org/old`.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Moved {
    /// The hub gives the new path alone.
    #[default]
    Path,
    /// It gives the whole address.
    Address,
    /// It is on another host.
    Host,
}

/// How the server behaves; tests change it while it runs.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// The files of the repository `org/name`.
    pub(crate) files: HashMap<String, Vec<u8>>,
    /// Other names of the repository.
    pub(crate) also: Vec<String>,
    /// Break the connection once, after this many bytes of this file's body.
    pub(crate) cut: Option<(String, usize)>,
    /// Answer requests for a range with the whole file.
    pub(crate) ignore_ranges: bool,
    /// Damage the contents of this file.
    pub(crate) damage: Option<String>,
    /// The token without which the answer is 401.
    pub(crate) token: Option<String>,
    /// Answer so to requests for the list of files, or for files.
    pub(crate) refuse_list: Option<Refused>,
    pub(crate) refuse_files: Option<Refused>,
    /// How to lead from `org/old` to `org/name`.
    pub(crate) moved: Moved,
    /// The commit to state for files, if not the right one.
    pub(crate) commit: Option<&'static str>,
    /// Answer this often with 429 to requests for the list of files.
    pub(crate) limited: usize,
    /// The header that says how long to wait then.
    pub(crate) limit: Option<&'static str>,
    /// Answer this often with 503 to requests for files.
    pub(crate) busy: usize,
    /// The entity tag to give for every file.
    pub(crate) etag: Option<String>,
    /// Every request so far.
    pub(crate) seen: Vec<Seen>,
}

/// The running server.
pub(crate) struct FakeHub {
    address: SocketAddr,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl FakeHub {
    pub(crate) fn start(files: &[(&str, Vec<u8>)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let files = files
            .iter()
            .map(|(name, data)| ((*name).to_owned(), data.clone()))
            .collect();
        let behaviour = Arc::new(Mutex::new(Behaviour {
            files,
            ..Behaviour::default()
        }));
        let shared = Arc::clone(&behaviour);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let behaviour = Arc::clone(&shared);
                std::thread::spawn(move || serve(&stream, &behaviour));
            }
        });
        Self { address, behaviour }
    }

    /// Its address.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A client configuration for this server with its cache in `cache`.
    pub(crate) fn config(&self, cache: &Path) -> HubConfig {
        HubConfig {
            endpoint: self.endpoint(),
            cache_dir: cache.to_owned(),
            token: None,
            offline: false,
            retries: 3,
            retry_delay: Duration::from_millis(1),
        }
    }

    pub(crate) fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().expect("the server does not panic")
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.behaviour().seen)
    }

    /// The requests since the last call that fetched the contents of `file`.
    pub(crate) fn fetches(&self, file: &str) -> Vec<Seen> {
        let path = format!("/storage/{file}");
        self.seen()
            .into_iter()
            .filter(|seen| seen.method == "GET" && seen.path.starts_with(&path))
            .collect()
    }
}

fn serve(stream: &TcpStream, behaviour: &Mutex<Behaviour>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return;
    };
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).is_err() || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
    }
    let host = headers.remove("host").unwrap_or_default();
    let (range, authorization) = (headers.remove("range"), headers.remove("authorization"));
    let encoding = headers.remove("accept-encoding");
    let seen = Seen {
        method,
        path,
        range,
        authorization,
        encoding,
        host,
    };
    let mut behaviour = behaviour.lock().expect("the server does not panic");
    behaviour.seen.push(seen.clone());
    let answer = answer(&seen, &mut behaviour);
    drop(behaviour);
    let mut stream = stream;
    // The client may be gone already, which is its business.
    let _ = stream.write_all(&answer);
}

/// The bytes to send; fewer than announced when the connection is to break.
fn answer(seen: &Seen, behaviour: &mut Behaviour) -> Vec<u8> {
    let path = seen.path.split('?').next().unwrap_or_default();
    if let Some(file) = path.strip_prefix("/storage/") {
        return storage(seen, file, behaviour);
    }
    let expected = behaviour.token.as_ref().map(|token| format!("Bearer {token}"));
    if expected.is_some() && seen.authorization != expected {
        return reply("401 Unauthorized", &[], b"");
    }
    let port = seen.host.rsplit(':').next().unwrap_or_default();
    if path.contains("org/old") {
        let host = match behaviour.moved {
            Moved::Path => String::new(),
            Moved::Address => format!("http://{}", seen.host),
            Moved::Host => format!("http://localhost:{port}"),
        };
        let place = format!("Location: {host}{}", path.replace("org/old", "org/name"));
        return reply("307 Temporary Redirect", &[place], b"");
    }
    let also = behaviour.also.iter().find(|name| path.contains(name.as_str()));
    let path = also.map_or_else(|| path.to_owned(), |name| path.replace(name, "org/name"));
    if let Some(revision) = path.strip_prefix("/api/models/org/name/revision/") {
        return list(revision, behaviour);
    }
    let whole = format!("/org/name/resolve/{COMMIT}/");
    let cached = format!("/api/resolve-cache/models/org/name/{COMMIT}/");
    let (file, from_cache) = match (path.strip_prefix(&whole), path.strip_prefix(&cached)) {
        (Some(file), _) => (file, false),
        (_, Some(file)) => (file, true),
        _ => return refuse(Refused::REPOSITORY),
    };
    if let Some(refused) = behaviour.refuse_files {
        return refuse(refused);
    }
    let Some(data) = behaviour.files.get(file) else {
        return refuse(Refused::ENTRY);
    };
    let commit = format!("X-Repo-Commit: {}", behaviour.commit.unwrap_or(COMMIT));
    let etag = |hash: fn(&[u8]) -> String| behaviour.etag.clone().unwrap_or_else(|| hash(data));
    if data.len() >= LARGE {
        return reply(
            "302 Found",
            &[commit, to_storage(file, port), linked(data, &etag(sha256))],
            b"",
        );
    }
    if !from_cache {
        let place = format!("Location: {cached}{file}?resolve={file}&etag={}", etag(git_hash));
        return reply("307 Temporary Redirect", &[commit, place], b"");
    }
    let body = if seen.method == "HEAD" { &[][..] } else { data };
    let headers = [commit, format!("ETag: W/\"{}\"", etag(git_hash))];
    reply_announcing("200 OK", &headers, data.len(), body)
}

/// The answer to a question for the repository's files.
fn list(revision: &str, behaviour: &mut Behaviour) -> Vec<u8> {
    if let Some(refused) = behaviour.refuse_list {
        return refuse(refused);
    }
    if !matches!(revision, "main" | COMMIT) {
        return refuse(Refused::REVISION);
    }
    if behaviour.limited > 0 {
        behaviour.limited -= 1;
        let limit = behaviour.limit.map(str::to_owned);
        return reply("429 Too Many Requests", limit.as_slice(), b"");
    }
    let files = behaviour.files.keys().map(|name| json!({"rfilename": name}));
    let body = json!({"sha": COMMIT, "siblings": files.collect::<Vec<_>>()});
    reply("200 OK", &[], body.to_string().as_bytes())
}

/// The header that leads to a file in storage, at an address that is signed.
fn to_storage(file: &str, port: &str) -> String {
    format!("Location: http://localhost:{port}/storage/{file}?X-Amz-Signature=0123")
}

/// What is said about a large file where the client is led on, in whichever storage it is.
fn linked(data: &[u8], etag: &str) -> String {
    format!(
        "X-Linked-Etag: \"{etag}\"\r\nX-Linked-Size: {}\r\nX-Xet-Hash: {}\r\nLink: </api/models/org/name/xet-read-token/{COMMIT}>; \
         rel=\"xet-auth\"",
        data.len(),
        sha256(&data[1..])
    )
}

impl Refused {
    /// There is no such repository, or none that the client may know of.
    pub(crate) const REPOSITORY: Self = Self {
        status: "404 Not Found",
        code: "RepoNotFound",
        message: "Repository not found",
    };
    const REVISION: Self = Self {
        status: "404 Not Found",
        code: "RevisionNotFound",
        message: "Invalid rev id",
    };
    const ENTRY: Self = Self {
        status: "404 Not Found",
        code: "EntryNotFound",
        message: "Entry not found",
    };
}

fn refuse(refused: Refused) -> Vec<u8> {
    let headers = [
        ("X-Error-Code", refused.code),
        ("X-Error-Message", refused.message),
    ];
    let told = headers.iter().filter(|(_, value)| !value.is_empty());
    let headers: Vec<String> = told.map(|(name, value)| format!("{name}: {value}")).collect();
    reply(refused.status, &headers, b"")
}

fn storage(seen: &Seen, file: &str, behaviour: &mut Behaviour) -> Vec<u8> {
    if seen.authorization.is_some() || !seen.path.ends_with("?X-Amz-Signature=0123") {
        return reply("400 Bad Request", &[], b"");
    }
    if seen.method != "GET" {
        return reply("403 Forbidden", &[], b"");
    }
    if behaviour.busy > 0 {
        behaviour.busy -= 1;
        return reply("503 Busy", &[], b"");
    }
    let mut data = behaviour.files[file].clone();
    if behaviour.damage.as_deref() == Some(file) {
        data[0] ^= 1;
    }
    let range = seen.range.as_ref().filter(|_| !behaviour.ignore_ranges);
    let start = range.and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse::<usize>()
            .ok()
    });
    let mut bytes = match start {
        Some(start) => {
            let range = format!("Content-Range: bytes {start}-{}/{}", data.len() - 1, data.len());
            reply("206 Partial Content", &[range], &data[start..])
        }
        None => reply("200 OK", &["ETag: \"of-the-storage\"".to_owned()], &data),
    };
    let body = data.len() - start.unwrap_or(0);
    if let Some((_, keep)) = behaviour.cut.take_if(|(cut, _)| cut == file) {
        bytes.truncate(bytes.len() - body + keep.min(body));
    }
    bytes
}

fn reply(status: &str, headers: &[String], body: &[u8]) -> Vec<u8> {
    reply_announcing(status, headers, body.len(), body)
}

fn reply_announcing(status: &str, headers: &[String], length: usize, body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n");
    for header in headers {
        out.push_str(header);
        out.push_str("\r\n");
    }
    out.push_str("\r\n");
    [out.as_bytes(), body].concat()
}

/// Stands for the hash that names a small file: not its SHA-256.
pub(crate) fn git_hash(data: &[u8]) -> String {
    sha256(data)[..40].to_owned()
}

/// The SHA-256 of `data` in hexadecimal.
pub(crate) fn sha256(data: &[u8]) -> String {
    Sha256::digest(data)
        .iter()
        .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

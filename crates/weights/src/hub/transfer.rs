//! Brings one file into the cache, going on where an earlier attempt broke off.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::cache::{RepoCache, create_parent};
use super::client::{Client, FileInfo, header, innermost};
use super::refusal::Refusal;
use super::{HubError, HubModel, Progress};

const BUFFER: usize = 256 << 10;

/// Makes sure that `file` of `commit` is in the cache and gives its path there.
pub(super) fn get(
    client: &Client<'_>,
    cache: &RepoCache,
    model: &HubModel,
    commit: &str,
    file: &str,
    progress: &dyn Progress,
) -> Result<PathBuf, HubError> {
    let path = cache.snapshot(commit).join(file);
    if path.is_file() {
        return Ok(path);
    }
    let info = client.file_info(model, commit, file)?;
    let blob = cache.blob(&info.etag);
    create_parent(&blob)?;
    let _lock = cache.lock(&info.etag, || progress.wait(file))?;
    if !blob.is_file() {
        let part = blob.with_extension("incomplete");
        let what = format!("{file} of {}", model.repo);
        Transfer {
            client,
            info: &info,
            repo: &model.repo,
            what: &what,
            file,
            part: &part,
            progress,
        }
        .run()?;
        fs::rename(&part, &blob).map_err(HubError::io(&blob))?;
    }
    cache.link(commit, file, &info.etag)
}

/// The download of one file into `part`.
struct Transfer<'a> {
    client: &'a Client<'a>,
    info: &'a FileInfo,
    repo: &'a str,
    what: &'a str,
    file: &'a str,
    part: &'a Path,
    progress: &'a dyn Progress,
}

/// How an attempt ended short of success.
enum Failure {
    /// Another attempt may succeed, after the time that the hub asks for.
    Retry(String, Option<Duration>),
    Final(HubError),
}

impl Failure {
    /// Another attempt may succeed at any time.
    fn passing(cause: impl Into<String>) -> Self {
        Self::Retry(cause.into(), None)
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        Self::Final(error)
    }
}

/// The bytes that are there so far, and their hash.
struct Partial {
    file: File,
    hash: Sha256,
    len: u64,
}

impl Transfer<'_> {
    /// Attempts until the file is whole. Attempts that brought bytes do not count against the retries: a large
    /// file on a bad line gets through as long as it gets on.
    fn run(&self) -> Result<(), HubError> {
        let config = self.client.config;
        let mut failures = 0;
        loop {
            let before = self.part_len();
            let (cause, wait) = match self.attempt() {
                Ok(()) => return Ok(()),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Retry(cause, wait)) => (cause, wait),
            };
            let have = self.part_len();
            failures = if have > before { 0 } else { failures + 1 };
            let pause = self.client.pause(failures, wait);
            let Some(pause) = pause.filter(|_| failures <= config.retries && config.retries > 0) else {
                let total = self
                    .info
                    .size
                    .map_or("an unknown number of".to_owned(), |size| size.to_string());
                let (what, endpoint) = (self.what.to_owned(), config.endpoint.clone());
                return Err(HubError::BrokenOff {
                    what,
                    endpoint,
                    have,
                    total,
                    cause,
                });
            };
            std::thread::sleep(pause);
        }
    }

    fn part_len(&self) -> u64 {
        fs::metadata(self.part).map_or(0, |part| part.len())
    }

    fn attempt(&self) -> Result<(), Failure> {
        let mut partial = self.open_partial()?;
        self.progress.start(self.file, self.info.size);
        if self.info.size.is_none_or(|size| partial.len < size) {
            let answer = self.client.open(&self.info.url, partial.len);
            let answer = answer.map_err(|cause| Failure::passing(innermost(&cause)))?;
            match answer.status().as_u16() {
                206 if range_start(header(&answer, "content-range")) == Some(partial.len) => {
                    self.progress.advance(partial.len);
                }
                // An answer with the whole file, or one that does not fit what was asked for: start over.
                200 => self.restart(&mut partial)?,
                206 | 416 => {
                    self.restart(&mut partial)?;
                    return Err(Failure::passing("the server sent another range than asked for"));
                }
                status @ (408 | 429 | 500..600) => {
                    let wait = Refusal::of(&answer).and_then(|refusal| refusal.wait);
                    return Err(Failure::Retry(format!("HTTP {status}"), wait));
                }
                status => {
                    self.client.expect_success(self.what, self.repo, &answer)?;
                    return Err(Failure::passing(format!("HTTP {status}")));
                }
            }
            self.receive(answer, &mut partial)?;
        }
        self.check_hash(partial)?;
        self.progress.finish();
        Ok(())
    }

    /// Opens what an earlier attempt left, or an empty file.
    fn open_partial(&self) -> Result<Partial, HubError> {
        let failed = || HubError::io(self.part);
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.part);
        let mut partial = Partial {
            file: options.map_err(failed())?,
            hash: Sha256::new(),
            len: 0,
        };
        if self.info.size.is_some_and(|size| self.part_len() > size) {
            partial.file.set_len(0).map_err(failed())?;
        }
        let mut buffer = vec![0; BUFFER];
        loop {
            match partial.file.read(&mut buffer).map_err(failed())? {
                0 => return Ok(partial),
                read => {
                    partial.hash.update(&buffer[..read]);
                    partial.len += read as u64;
                }
            }
        }
    }

    fn restart(&self, partial: &mut Partial) -> Result<(), HubError> {
        if partial.len > 0 {
            fs::remove_file(self.part).map_err(HubError::io(self.part))?;
            *partial = self.open_partial()?;
        }
        Ok(())
    }

    fn receive(&self, mut body: impl Read, partial: &mut Partial) -> Result<(), Failure> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = body
                .read(&mut buffer)
                .map_err(|cause| Failure::passing(innermost(&cause)))?;
            if read == 0 {
                break;
            }
            partial
                .file
                .write_all(&buffer[..read])
                .map_err(HubError::writing(self.what, self.part))?;
            partial.hash.update(&buffer[..read]);
            partial.len += read as u64;
            self.progress.advance(read as u64);
            if self.info.size.is_some_and(|size| partial.len > size) {
                break;
            }
        }
        match self.info.size {
            Some(size) if partial.len != size => Err(Failure::passing(format!(
                "the server sent {} bytes instead of {size}",
                partial.len
            ))),
            _ => Ok(()),
        }
    }

    fn check_hash(&self, partial: Partial) -> Result<(), HubError> {
        let Some(expected) = self.info.sha256() else {
            return Ok(());
        };
        let digest = partial.hash.finalize();
        let found = digest
            .iter()
            .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        // Going on from damaged bytes would fail for ever.
        fs::remove_file(self.part).map_err(HubError::io(self.part))?;
        Err(HubError::Damaged {
            what: self.what.to_owned(),
            expected: expected.to_owned(),
            found,
        })
    }
}

/// The first byte of a `Content-Range` such as `bytes 100-199/200`.
fn range_start(content_range: Option<&str>) -> Option<u64> {
    content_range?
        .strip_prefix("bytes ")?
        .split_once('-')?
        .0
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::range_start;

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(range_start(Some("bytes 100-199/200")), Some(100));
        assert_eq!(range_start(Some("bytes */200")), None);
        assert_eq!(range_start(None), None);
    }
}

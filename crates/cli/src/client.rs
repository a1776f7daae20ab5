//! Servers as commands name them.

use anyhow::{Context, Result};
use paceline_client::{Client, ClientError};
use std::fs;
use std::path::Path;

/// A client of the server at `url`, with the certificates of a file if one is given.
pub(crate) fn open(url: &str, key: Option<&str>, ca_file: Option<&Path>) -> Result<Client> {
    let Some(path) = ca_file else {
        return Ok(Client::new(url, key, None)?);
    };
    let name = || format!("--ca-file {}", path.display());
    let certificates = fs::read(path).with_context(name)?;
    let client = Client::new(url, key, Some(&certificates));
    client.map_err(|error| match error {
        ClientError::Certificates { .. } => anyhow::anyhow!(error).context(name()),
        other => other.into(),
    })
}

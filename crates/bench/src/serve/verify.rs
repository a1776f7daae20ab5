//! Answers of a crowd, asked for again one by one: the same, if a text depends on its request alone.

use super::driver::finish_of;
use super::prompts::{Prompts, Template};
use super::record::Record;
use crate::error::BenchError;
use crate::progress::{Progress, Unit};
use paceline_client::Client;
use serde_json::json;
use std::time::Duration;

/// Asks for up to `count` of the answers again, alone and, where the server says what drafts did, without any. Returns how
/// many there were.
pub(super) async fn verify(
    client: &Client,
    (template, prompts): (&Template, &Prompts<'_>),
    records: &[Record],
    (count, limit): (usize, Duration),
    progress: &dyn Progress,
) -> Result<usize, BenchError> {
    let whole: Vec<&Record> = records.iter().filter(|record| record.is_completed()).collect();
    let count = count.min(whole.len());
    let bar = progress.bar(count as u64, Unit::Tasks);
    // From all over the run, not only from where it was filling up.
    for record in (0..count).map(|index| whole[index * whole.len() / count]) {
        let mut body = prompts.body(record.index, template);
        if record.usage.is_some_and(|usage| usage.speculation.is_some()) {
            body["speculation"] = json!({ "method": "off" });
        }
        let alone = finish_of(client, template.endpoint, &body, limit).await?;
        if alone.text != record.text || alone.finish_reason != record.finish_reason {
            return Err(BenchError::Unlike {
                request: record.index,
                position: parting(&record.text, &alone.text),
                crowd: record.text.clone(),
                alone: alone.text,
            });
        }
        bar.advance(1);
    }
    Ok(count)
}

/// Where two texts part, in characters.
fn parting(one: &str, two: &str) -> usize {
    one.chars().zip(two.chars()).take_while(|(a, b)| a == b).count()
}

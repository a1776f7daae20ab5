//! The body of a request: read within its limits, then as JSON with errors that name the place.

use crate::app::App;
use crate::error::{ApiError, ErrorKind};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

/// Longest part of a client's text that an error quotes.
const QUOTED: usize = 300;

/// The bytes of a body, all of them.
pub(crate) struct Body(pub(crate) Bytes);

impl FromRequest<App> for Body {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        if request.uri().path().starts_with("/v1/") {
            app.expect_room()?;
        }
        let limit = app.config.max_body_bytes;
        let too_large = || {
            let message = format!("the body is too large; at most {limit} bytes are taken");
            ApiError::new(ErrorKind::TooLarge, message)
        };
        let announced = request.headers().get(header::CONTENT_LENGTH);
        let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        let reading = Limited::new(request.into_body(), limit).collect();
        match tokio::time::timeout(app.config.body_timeout, reading).await {
            Ok(Ok(body)) => Ok(Self(body.to_bytes())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(error)) => {
                let message = format!("the body cannot be read: {error}");
                Err(ApiError::new(ErrorKind::Invalid, message))
            }
            Err(_) => {
                let seconds = app.config.body_timeout.as_secs();
                let message = format!("the body did not arrive within {seconds} s");
                Err(ApiError::new(ErrorKind::Timeout, message))
            }
        }
    }
}

impl Body {
    /// Reads the fields that `T` knows. Interfaces that share fields read the same body more than once, a part of
    /// the fields each time: so every error has its exact place, which flattened structures lose.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, ApiError> {
        // A list would pass for the fields in their order.
        if self.0.trim_ascii_start().first() != Some(&b'{') {
            let message = "the body is not valid: it must be a JSON object";
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
        let mut json = serde_json::Deserializer::from_slice(&self.0);
        let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let reason = shorten(&error.inner().to_string());
            // What no float can hold is a matter of the grammar to the reader, and of the field to whoever sent it.
            let of_field = error.inner().is_data() || reason.starts_with("number out of range");
            if of_field && path != "." {
                return ApiError::field(path.clone(), format!("`{path}`: {reason}"));
            }
            ApiError::new(ErrorKind::Invalid, format!("the body is not valid: {reason}"))
        })?;
        json.end().map_err(|error| {
            let message = format!("the body is not valid: {error}");
            ApiError::new(ErrorKind::Invalid, message)
        })?;
        Ok(value)
    }
}

/// Keeps the start of a text that may quote the client.
pub(crate) fn shorten(text: &str) -> String {
    if text.chars().nth(QUOTED).is_none() {
        return text.to_owned();
    }
    let start: String = text.chars().take(QUOTED).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default)]
        _list: Vec<u32>,
    }

    fn error(json: &[u8]) -> ApiError {
        Body(Bytes::copy_from_slice(json)).read::<Sample>().unwrap_err()
    }

    #[test]
    fn errors_name_the_place() {
        let error = error(br#"{"_list": [1, "two"]}"#);
        assert_eq!(error.param.as_deref(), Some("_list[1]"));
        assert!(error.message.contains("two"), "{}", error.message);
    }

    #[test]
    fn what_is_no_json_is_an_error() {
        for json in [
            &b""[..],
            b"{",
            b"[]",
            b"nul",
            b"\xff",
            b"{} x",
            b"{\"_list\": [1e999]}",
        ] {
            assert_eq!(error(json).kind, ErrorKind::Invalid);
        }
        let deep = vec![b'['; 100_000];
        let nested = [&br#"{"other": "#[..], &deep].concat();
        assert_eq!(error(&nested).kind, ErrorKind::Invalid);
    }

    #[test]
    fn a_quoted_text_is_short() {
        let long = format!(r#"{{"_list": ["{}"]}}"#, "x".repeat(1 << 20));
        assert!(error(long.as_bytes()).message.len() < 2000);
    }
}

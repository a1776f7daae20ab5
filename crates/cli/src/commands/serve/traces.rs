//! Where spans of requests go: by flag, and by the variables that OpenTelemetry has for it.

use crate::env;
use anyhow::{Context, Result, anyhow, bail};
use paceline_server::{Sampler, TraceConfig};
use std::time::Duration;

/// How long a collector may take where nothing is said.
const TIMEOUT_MS: u64 = 10_000;

/// What flag and environment ask for; nothing unless one of them names a collector.
pub(super) fn config(flag: Option<&str>) -> Result<Option<TraceConfig>> {
    read(flag, &env::text)
}

type Variables<'a> = &'a dyn Fn(&str) -> Result<Option<String>>;

fn read(flag: Option<&str>, variables: Variables<'_>) -> Result<Option<TraceConfig>> {
    // A variable that is empty is as good as none.
    let get = |name: &str| Ok::<_, anyhow::Error>(variables(name)?.filter(|value| !value.is_empty()));
    // Those of traces come before those of all signals.
    let get_either = |name: &str| {
        let own = get(&format!("OTEL_EXPORTER_OTLP_TRACES_{name}"))?;
        own.map_or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")), |own| Ok(Some(own)))
    };
    let Some(endpoint) = endpoint(flag, &get)? else {
        return Ok(None);
    };
    if let Some(protocol) = get_either("PROTOCOL")?.filter(|name| name != "http/protobuf") {
        bail!("OTEL_EXPORTER_OTLP_PROTOCOL is `{protocol}`; spans are sent as http/protobuf");
    }
    let timeout = get_either("TIMEOUT")?.map_or(Ok(TIMEOUT_MS), |text| {
        let wrong = || format!("OTEL_EXPORTER_OTLP_TIMEOUT is `{text}`; it must be milliseconds");
        text.parse().with_context(wrong)
    })?;
    let sampler = match get("OTEL_TRACES_SAMPLER")? {
        Some(name) => Sampler::named(&name, get("OTEL_TRACES_SAMPLER_ARG")?.as_deref())
            .context("OTEL_TRACES_SAMPLER")?,
        None => Sampler::default(),
    };
    let headers = get_either("HEADERS")?.unwrap_or_default();
    let attributes = get("OTEL_RESOURCE_ATTRIBUTES")?.unwrap_or_default();
    let mut resource = pairs("OTEL_RESOURCE_ATTRIBUTES", &attributes)?;
    let mut add = |name: &str, value: Option<String>, usual: &str| {
        let given = resource.iter().any(|(known, _)| known == name);
        match value {
            Some(value) => {
                resource.retain(|(known, _)| known != name);
                resource.push((name.to_owned(), value));
            }
            None if !given => resource.push((name.to_owned(), usual.to_owned())),
            None => {}
        }
    };
    add("service.name", get("OTEL_SERVICE_NAME")?, "paceline");
    add("service.version", None, env!("CARGO_PKG_VERSION"));
    Ok(Some(TraceConfig {
        endpoint,
        headers: pairs("OTEL_EXPORTER_OTLP_HEADERS", &headers)?,
        resource,
        sampler,
        timeout: Duration::from_millis(timeout),
    }))
}

/// The collector's address for spans. A flag comes first, then the variable for spans; both are taken as they are but for
/// a flag without a path. What is for all signals gets the usual path.
fn endpoint(flag: Option<&str>, get: &dyn Fn(&str) -> Result<Option<String>>) -> Result<Option<String>> {
    const PATH: &str = "/v1/traces";
    if let Some(flag) = flag {
        let bare = flag.trim_end_matches('/');
        let path = bare.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
        return Ok(Some(if path {
            flag.to_owned()
        } else {
            format!("{bare}{PATH}")
        }));
    }
    let disabled = get("OTEL_SDK_DISABLED")?.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let exporter = get("OTEL_TRACES_EXPORTER")?;
    match exporter.as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => bail!("OTEL_TRACES_EXPORTER is `{other}`; there are otlp and none"),
    }
    if disabled {
        return Ok(None);
    }
    if let Some(endpoint) = get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")? {
        return Ok(Some(endpoint));
    }
    let base = get("OTEL_EXPORTER_OTLP_ENDPOINT")?;
    Ok(base.map(|base| format!("{}{PATH}", base.trim_end_matches('/'))))
}

/// `name=value` with commas between them, values as in addresses.
fn pairs(variable: &str, text: &str) -> Result<Vec<(String, String)>> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let wrong = || anyhow!("{variable}: `{entry}` is not of the form name=value");
            let (name, value) = entry.split_once('=').ok_or_else(wrong)?;
            let value = decoded(value.trim()).ok_or_else(wrong)?;
            Ok((name.trim().to_owned(), value))
        })
        .collect()
}

/// The text that `%` and two digits stand for, as in addresses.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first == b'%' {
            let (digits, behind) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = behind;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flag: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<TraceConfig>> {
        read(flag, &|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            Ok(found.map(|(_, value)| (*value).to_owned()))
        })
    }

    fn endpoint_of(flag: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        of(flag, variables).unwrap().map(|config| config.endpoint)
    }

    #[test]
    fn spans_are_sent_where_flag_or_environment_say_and_nowhere_else() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://own:4318/x");
        assert_eq!(endpoint_of(None, &[]), None);
        assert_eq!(endpoint_of(None, &[all]).unwrap(), "http://all:4318/v1/traces");
        assert_eq!(endpoint_of(None, &[all, own]).unwrap(), "http://own:4318/x");
        assert_eq!(
            endpoint_of(Some("http://flag:4318"), &[own]).unwrap(),
            "http://flag:4318/v1/traces"
        );
        assert_eq!(
            endpoint_of(Some("http://flag/a"), &[own]).unwrap(),
            "http://flag/a"
        );
        assert_eq!(endpoint_of(None, &[all, ("OTEL_SDK_DISABLED", "true")]), None);
        assert_eq!(endpoint_of(None, &[all, ("OTEL_TRACES_EXPORTER", "none")]), None);
    }

    #[test]
    fn variables_say_what_is_sent_along() {
        let config = of(
            Some("http://flag"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc, x-a=1"),
                ("OTEL_RESOURCE_ATTRIBUTES", "service.name=old,zone=a%2Cb"),
                ("OTEL_SERVICE_NAME", "tales"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
                ("OTEL_TRACES_SAMPLER", "traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ],
        );
        let config = config.unwrap().unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            config.headers,
            [pair("authorization", "Basic abc"), pair("x-a", "1")]
        );
        let version = pair("service.version", env!("CARGO_PKG_VERSION"));
        assert_eq!(
            config.resource,
            [pair("zone", "a,b"), pair("service.name", "tales"), version]
        );
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(
            config.sampler,
            Sampler::named("traceidratio", Some("0.25")).unwrap()
        );
    }

    #[test]
    fn what_cannot_be_done_as_asked_is_an_error_that_names_the_variable() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_RESOURCE_ATTRIBUTES", "zone"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zz"),
        ] {
            let error = of(Some("http://flag"), &[(name, value)]).unwrap_err();
            assert!(format!("{error:#}").contains(name), "{error:#}");
        }
        assert!(of(None, &[("OTEL_TRACES_EXPORTER", "zipkin")]).is_err());
    }
}

//! What is in `packaging/kubernetes` agrees with itself and with the program: its arguments are taken, the paths of its
//! probes are served, the metrics that it scales by exist.

use crate::common::repository;
use crate::common::served::Served;
use crate::environment::{expect_success, python};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// The documents of a text in YAML.
fn parse(yaml: &str) -> Vec<Value> {
    let script = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut child = Command::new(python())
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(yaml.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    expect_success("a reader of YAML", &output);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The documents of a file.
fn file(name: &str) -> Value {
    let path = repository("packaging/kubernetes").join(name);
    let mut documents = parse(&fs::read_to_string(&path).unwrap());
    assert_eq!(documents.len(), 1, "{name}");
    documents.remove(0)
}

fn container() -> Value {
    file("base/deployment.yaml")["spec"]["template"]["spec"]["containers"][0].clone()
}

#[test]
fn a_pod_has_time_to_drain() {
    let pod = file("base/deployment.yaml")["spec"]["template"]["spec"].clone();
    let container = &pod["containers"][0];
    let arguments: Vec<&str> = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one.as_str().unwrap())
        .collect();
    let drain = arguments
        .iter()
        .position(|one| *one == "--drain-timeout")
        .unwrap();
    let drain: u64 = arguments[drain + 1].parse().unwrap();
    let wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
        .as_u64()
        .unwrap();
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(
        grace > drain + wait,
        "{grace} s are not enough for {wait} s and {drain} s"
    );
    // Routers hear of it before it takes nothing more.
    let ready = &container["readinessProbe"];
    let heard = ready["periodSeconds"].as_u64().unwrap() * ready["failureThreshold"].as_u64().unwrap();
    assert!(wait > heard);
}

#[test]
fn the_program_takes_the_arguments_and_serves_what_is_asked_for() {
    let container = container();
    let arguments: Vec<String> = serde_json::from_value(container["args"].clone()).unwrap();
    let image = fs::read_to_string(repository("Dockerfile")).unwrap();
    assert!(image.contains("ENTRYPOINT [\"paceline\"]") && image.contains("--uid 10001"));
    let pod = file("base/deployment.yaml")["spec"]["template"]["spec"].clone();
    assert_eq!(pod["securityContext"]["runAsUser"], 10001);
    let [command, host, address, port, number, rest @ ..] = arguments.as_slice() else {
        panic!("{arguments:?}");
    };
    assert_eq!(
        [command, host, address, port],
        ["serve", "--host", "0.0.0.0", "--port"]
    );
    assert_eq!(container["ports"][0]["containerPort"].to_string(), *number);
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    let served = Served::start(&rest);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap();
        assert_eq!(served.ask(&format!("GET {path}"), "", "").0, 200, "{probe}");
        assert_eq!(container[probe]["httpGet"]["port"], container["ports"][0]["name"]);
    }
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/ready");
    let monitor = file("base/monitor.yaml");
    let path = monitor["spec"]["endpoints"][0]["path"].as_str().unwrap();
    let (status, metrics) = served.ask(&format!("GET {path}"), "", "");
    assert_eq!(status, 200);
    let trigger = file("autoscaling/scaled-object.yaml")["spec"]["triggers"][0]["metadata"].clone();
    let query = trigger["query"].as_str().unwrap();
    let scales_by = "paceline:queue_age_seconds";
    assert!(query.contains(scales_by), "{query}");
    // What the endpoint picker of llm-d reads.
    let picks_by = [
        "vllm:num_requests_waiting",
        "vllm:num_requests_running",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info",
    ];
    for name in picks_by.into_iter().chain([scales_by]) {
        let line = metrics
            .lines()
            .find(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
        assert!(line.is_some(), "{name} is not among the metrics");
    }
}

/// What the overlay for llm-d adds at the end of a list of the container.
fn added_for_llm_d(list: &str) -> Vec<Value> {
    let overlay = file("llm-d/kustomization.yaml");
    let operations = parse(overlay["patches"][1]["patch"].as_str().unwrap()).remove(0);
    let path = format!("/spec/template/spec/containers/0/{list}/-");
    let added = operations.as_array().unwrap().iter().filter(|one| {
        assert_eq!(one["op"], "add");
        one["path"] == path
    });
    added.map(|one| one["value"].clone()).collect()
}

#[test]
fn the_events_for_llm_d_are_published_under_its_topic() {
    let arguments: Vec<String> = serde_json::from_value(added_for_llm_d("args").into()).unwrap();
    let [flag, config] = arguments.as_slice() else {
        panic!("{arguments:?}");
    };
    assert_eq!(flag, "--kv-events-config");
    let [address] = &added_for_llm_d("env")[..] else {
        panic!("the address of the pod");
    };
    assert_eq!(address["valueFrom"]["fieldRef"]["fieldPath"], "status.podIP");
    // As Kubernetes puts it in; and on ports that are free here.
    let mut config = config.replace(&format!("$({})", address["name"].as_str().unwrap()), "10.0.0.7");
    for port in added_for_llm_d("ports") {
        let listened = format!("tcp://*:{}", port["containerPort"]);
        assert!(config.contains(&listened), "{config}");
        config = config.replace(&listened, "tcp://127.0.0.1:0");
    }
    assert!(!config.contains("*:"), "a port that is not named: {config}");
    let served = Served::start(&[flag, &config]);
    let model = served.get("/v1/models")["data"][0]["id"].clone();
    let events = served.get("/v1/engine")["cache"]["kv_events"].clone();
    assert_eq!(
        events["topic"],
        format!("kv@10.0.0.7@{}", model.as_str().unwrap())
    );
    assert!(events["replay_endpoint"].is_string(), "{events}");
}

/// What kustomize makes of a folder.
fn built(folder: &str) -> Vec<Value> {
    let path = repository("packaging/kubernetes").join(folder);
    let built = Command::new("kubectl")
        .arg("kustomize")
        .arg(path)
        .output()
        .unwrap();
    expect_success(folder, &built);
    parse(&String::from_utf8(built.stdout).unwrap())
}

/// Whether a selector chooses something with these labels.
fn chooses(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().unwrap();
    !wanted.is_empty() && wanted.iter().all(|(name, value)| labels[name] == *value)
}

#[test]
fn kustomize_puts_the_parts_together() {
    if Command::new("kubectl")
        .args(["version", "--client"])
        .output()
        .is_err()
    {
        println!("skipped: there is no kubectl");
        return;
    }
    for (folder, more) in [
        ("base", None),
        ("autoscaling", Some("ScaledObject")),
        ("llm-d", Some("InferencePool")),
    ] {
        let documents = built(folder);
        let of = |kind: &str| documents.iter().find(|one| one["kind"] == kind).unwrap();
        assert_eq!(documents.len(), 4 + usize::from(more.is_some()), "{folder}");
        let deployment = of("Deployment");
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        for selector in [
            &deployment["spec"]["selector"]["matchLabels"],
            &of("Service")["spec"]["selector"],
            &of("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        ] {
            assert!(chooses(selector, labels), "{folder}: {selector} of {labels}");
        }
        let service = &of("Service")["metadata"]["labels"];
        let monitored = &of("ServiceMonitor")["spec"]["selector"]["matchLabels"];
        assert!(chooses(monitored, service), "{folder}: {monitored} of {service}");
        let image = concat!("paceline:", env!("CARGO_PKG_VERSION"));
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["image"], image);
        // How many replicas there are is the autoscaler's business.
        assert_eq!(deployment["spec"]["replicas"].is_null(), folder == "autoscaling");
        if folder == "llm-d" {
            let pool = &of("InferencePool")["spec"];
            assert!(chooses(&pool["selector"]["matchLabels"], labels), "{pool}");
            assert_eq!(
                pool["targetPorts"][0]["number"],
                container["ports"][0]["containerPort"]
            );
            assert_eq!(labels["llm-d.ai/engine-type"], "vllm");
            for list in ["args", "env", "ports"] {
                let all = container[list].as_array().unwrap();
                assert!(all.ends_with(&added_for_llm_d(list)), "{list}: {all:?}");
            }
        }
    }
}

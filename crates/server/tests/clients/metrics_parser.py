"""Prometheus's own parsers read both formats of /metrics, and find the same families in them."""

import json
import urllib.request

from prometheus_client import parser as classic
from prometheus_client.openmetrics import parser as strict

from common import BASE, KEY, MODEL


def get(accept):
    request = urllib.request.Request(f"{BASE}/metrics", headers={"accept": accept})
    with urllib.request.urlopen(request) as reply:
        return reply.headers["content-type"], reply.read().decode()


def families(parser, text):
    found = parser.text_string_to_metric_families(text)
    return {(family.name, family.type, len(family.samples)) for family in found}


body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8}).encode()
headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
with urllib.request.urlopen(urllib.request.Request(f"{BASE}/v1/completions", body, headers)) as reply:
    assert reply.status == 200

kind, text = get("application/openmetrics-text;version=1.0.0")
assert kind.startswith("application/openmetrics-text"), kind
assert text.endswith("# EOF\n")
_, plain = get("text/plain")
first, second = families(strict, text), families(classic, plain)
assert len(first) > 50, first
assert first == second, first ^ second

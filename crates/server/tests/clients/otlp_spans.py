"""Reads what was sent to a collector, with the messages that OpenTelemetry publishes, and prints it as JSON."""

import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def pairs(attributes):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


request = ExportTraceServiceRequest()
request.ParseFromString(sys.stdin.buffer.read())
# Nothing in it may be unknown to those messages: without what is not, it would be shorter.
request.DiscardUnknownFields()
spans = []
for of_resource in request.resource_spans:
    for of_scope in of_resource.scope_spans:
        for span in of_scope.spans:
            spans.append(
                {
                    "resource": pairs(of_resource.resource.attributes),
                    "scope": of_scope.scope.name,
                    "trace_id": span.trace_id.hex(),
                    "span_id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "name": span.name,
                    "kind": span.kind,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "error": span.status.code == 2,
                    "attributes": pairs(span.attributes),
                }
            )
json.dump({"size": request.ByteSize(), "spans": spans}, sys.stdout)

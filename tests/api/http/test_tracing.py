"""Spans of requests, taken by a provider that stands for the SDK of OpenTelemetry."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, Tracer, TracerProvider
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from tests.api.http.server import REQUEST


class Span(NonRecordingSpan):
    def __init__(self, name: str, attributes: Any) -> None:
        super().__init__(SpanContext(trace_id=0xABC, span_id=1, is_remote=False, trace_flags=TraceFlags(1)))
        self.name, self.attributes = name, dict(attributes or {})

    def is_recording(self) -> bool:
        return True

    def set_attribute(self, key: str, value: Any) -> None:
        self.attributes[key] = value

    def set_attributes(self, attributes: Any) -> None:
        self.attributes.update(attributes)

    def update_name(self, name: str) -> None:
        self.name = name


class Provider(TracerProvider, Tracer):
    def __init__(self) -> None:
        self.spans: list[Span] = []

    def get_tracer(self, *_: Any, **__: Any) -> Tracer:
        return self

    def start_span(self, name: str, *_: Any, attributes: Any = None, **__: Any) -> Span:
        self.spans.append(Span(name, attributes))
        return self.spans[-1]

    def start_as_current_span(self, name: str, *_: Any, attributes: Any = None, **__: Any) -> Any:
        return trace.use_span(self.start_span(name, attributes=attributes))


def test_spans_and_log_lines_name_what_a_request_is_about(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    with capture_logs(processors=[merge_contextvars]) as logs:
        envelope = client.post("/v1/plans?priority=batch", json=REQUEST).json()["envelope"]
    (span,) = provider.spans
    assert span.name == "POST /v1/plans"
    assert span.attributes["http.response.status_code"] == 200
    named = {name: value for name, value in span.attributes.items() if name.startswith("shardwright.")}
    assert named == {
        "shardwright.tenant": "default",
        "shardwright.caller": "anonymous",
        "shardwright.job_id": envelope["job_id"],
        "shardwright.plan_id": envelope["plan_id"],
    }
    (line,) = [line for line in logs if line["event"] == "request"]
    assert (line["job_id"], line["trace_id"]) == (envelope["job_id"], f"{0xABC:032x}")

"""What a request is about: identities in its log lines and in its span.

FastAPI makes a span for each request where OpenTelemetry's SDK is installed and `OTEL_EXPORTER_OTLP_ENDPOINT` says
where spans go. Metrics and logs stay our own: exported errors could hold what our logs leave out.
"""

import structlog
from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace

TELEMETRY: TelemetryConfig = {"auto_configure": True, "operation_spans": False, "metrics": False, "logs": False}


def note(**identities: str) -> None:
    """From here on all log lines of the request have these fields, and its span has them as `shardwright.NAME`."""
    structlog.contextvars.bind_contextvars(**identities)
    trace.get_current_span().set_attributes(
        {f"shardwright.{name}": identity for name, identity in identities.items()}
    )


def trace_fields() -> dict[str, str]:
    """Identity of the trace of a request, for its log lines; nothing where there is none."""
    context = trace.get_current_span().get_span_context()
    return {"trace_id": trace.format_trace_id(context.trace_id)} if context.is_valid else {}

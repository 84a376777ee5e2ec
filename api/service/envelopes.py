"""Envelopes of stored plans, changed without reading their bodies."""

import json
from typing import Any

_BEFORE_ENVELOPE = b'\n "envelope": '
"""As `Plan.to_json` writes it: one space deep, where nothing inside the body can be."""


def with_envelope(stored: bytes, **changes: Any) -> bytes:  # noqa: ANN401 - JSON values
    """The JSON of a plan with other fields in its envelope; the bytes of the body stay as they are."""
    body, separator, rest = stored.rpartition(_BEFORE_ENVELOPE)
    assert separator, "stored plans have envelopes"
    envelope = json.loads(rest.rstrip().removesuffix(b"}"))
    envelope.update({name: value for name, value in changes.items() if value is not None})
    text = json.dumps(envelope, indent=1, ensure_ascii=False).replace("\n", "\n ")
    return body + separator + text.encode() + b"\n}\n"

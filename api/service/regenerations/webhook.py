"""Tell an address of the operator's that a regeneration has ended, signed so that it knows who says so."""

import hashlib
import hmac
import json
import random
import time
from typing import Any

import httpx2
import structlog

from profiles_db.tables import Notice, RegenerationRow

_log = structlog.get_logger()

TIMEOUT_S = 5.0
MAX_ATTEMPTS = 12
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 2.0, 600.0
SIGNATURE_HEADER = "Shardwright-Signature"
DELIVERY_HEADER = "Shardwright-Delivery"


def signature(secret: str, at_s: int, body: bytes) -> str:
    """`t=SECONDS,v1=HEX`: HMAC-SHA256 over the time, a dot and the body. Receivers refuse old times."""
    digest = hmac.new(secret.encode(), f"{at_s}.".encode() + body, hashlib.sha256)
    return f"t={at_s},v1={digest.hexdigest()}"


class Webhook:
    """One address and one secret, from the settings alone. Redirects are not followed."""

    def __init__(self, url: str, secret: str) -> None:
        self._url = url
        self._secret = secret

    def tell(self, row: RegenerationRow, counts: dict[str, dict[str, int]]) -> tuple[Notice, int]:
        """Try once; returns the state of the notice, and after how many microseconds to try again."""
        body = json.dumps(_event(row, counts), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            SIGNATURE_HEADER: signature(self._secret, int(time.time()), body),
            DELIVERY_HEADER: row.regeneration_id,
        }
        try:
            with httpx2.Client(timeout=TIMEOUT_S, follow_redirects=False) as http:
                status = http.post(self._url, content=body, headers=headers).status_code
            failure = "" if 200 <= status < 300 else f"HTTP {status}"
        except (httpx2.HTTPError, OSError) as error:
            failure = type(error).__name__
        if not failure:
            _log.info("webhook_delivered")
            return Notice.DELIVERED, 0
        if row.notice_attempts + 1 >= MAX_ATTEMPTS:
            _log.error("webhook_given_up", failure=failure, attempts=row.notice_attempts + 1)
            return Notice.GIVEN_UP, 0
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**row.notice_attempts) * random.uniform(0.5, 1.0)
        _log.warning("webhook_failed", failure=failure, again_in_s=round(pause_s, 1))
        return Notice.WAITING, int(pause_s * 1e6)


def _event(row: RegenerationRow, counts: dict[str, dict[str, int]]) -> dict[str, Any]:
    return {
        "event": f"regeneration.{row.state}",
        "tenant": row.tenant,
        "regeneration_id": row.regeneration_id,
        "cluster": row.cluster_name,
        "cluster_revision": row.cluster_revision,
        "num_items": row.num_items,
        "verdicts": counts["verdict"],
        "reviews": counts["review"],
        "link": f"/v1/regenerations/{row.regeneration_id}",
    }

"""Jobs, from the answers of a service."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_TO_THE_SECOND = 19


def job_lines(items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Two lines for each job: what became of it, and its identity in one piece, to be copied."""
    for item in items:
        asked_at = item["created_at"][:_TO_THE_SECOND].replace("T", " ")
        yield f"{item['state']:<9}  {item['priority']:<12}  {asked_at}  {_outcome(item)}".rstrip()
        yield f"           {item['job_id']}"


def _outcome(item: Mapping[str, Any]) -> str:
    if item["problem"] is not None:
        return str(item["problem"]["detail"])
    progress = item["progress"]
    return str(item["plan_id"] or (progress and progress["message"]) or "")

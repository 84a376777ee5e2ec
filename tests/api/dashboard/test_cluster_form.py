import json

import pytest

from api.dashboard.cluster_form import revision_of
from planner.schema.errors import InvalidDocument


@pytest.mark.parametrize("text", ["inf", "nan", "-inf", "1e400", "1e300", "9" * 5000, "many", ""])
@pytest.mark.parametrize("field", ["memory_gib", "share_percent", "within_percent", "num_nodes"])
def test_what_is_no_number_is_refused_by_name(field: str, text: str) -> None:
    change = {"memory_gib": "memory", "share_percent": "link_degraded"}.get(field, "nodes_lost")
    form = {"change": change, "num_nodes": "1", field: text}
    if (field, text) == ("within_percent", ""):
        assert json.loads(revision_of(form))["policy"] == {"activate_within_percent": None}
        return
    with pytest.raises(InvalidDocument, match=field.replace("_", " ")):
        revision_of(form)


def test_memory_is_given_in_gib() -> None:
    form = {"change": "memory", "memory_gib": " 79.5 ", "why": " new cards "}
    document = json.loads(revision_of(form, dry_run=True))
    assert document["changes"] == [{"change": "memory", "group": 0, "device_memory_bytes": round(79.5 * 2**30)}]
    assert (document["why"], document["dry_run"]) == ("new cards", True)

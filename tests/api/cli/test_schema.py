import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from api.cli.schema import documents

ROOT = Path(__file__).resolve().parents[3]


def test_schemas_accept_what_the_contract_writes(small_request, feasible_plan, infeasible_plan):
    written = {
        "model": small_request.model,
        "cluster": small_request.cluster,
        "workload": small_request.workload,
        "request": small_request,
        "plan": feasible_plan.body,
        "plan_envelope": infeasible_plan,
    }
    for kind, document in written.items():
        schema = documents()[kind].model_json_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(document.model_dump(mode="json", exclude_defaults=True), schema)


def test_schemas_refuse_unknown_fields(small_request):
    schema = documents()["workload"].model_json_schema()
    value = small_request.workload.model_dump(mode="json") | {"micro_batches": 2}
    with pytest.raises(jsonschema.ValidationError, match="micro_batches"):
        jsonschema.validate(value, schema)


def test_exported_schemas_are_up_to_date():
    result = subprocess.run(
        [sys.executable, "scripts/export_schema.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")

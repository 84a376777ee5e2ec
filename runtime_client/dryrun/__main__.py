"""`python -m runtime_client.dryrun`: one job a line on stdin, one record or error a line on stdout.

The first error ends the run with status 1.
"""

import json
import sys
import traceback
from contextlib import redirect_stdout
from typing import TextIO

from pydantic import ValidationError

from planner.schema import InvalidDocument, ShardwrightError
from runtime_client.dryrun.job import DryRunJob, dump_record, run_job


def main() -> int:
    """Read jobs until stdin ends; what the models print goes to stderr."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):
        return next((1 for line in sys.stdin if line.strip() and not _answer(line, answers)), 0)


def _answer(line: str, answers: TextIO) -> bool:
    try:
        answer = {"record": dump_record(run_job(_parse(line)))}
    except ShardwrightError as error:
        answer = {"error": str(error), "code": error.code}
    except Exception as error:  # the user's model may raise anything
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}", "code": "dry_run_failed"}
    print(json.dumps(answer), file=answers, flush=True)
    return "record" in answer


def _parse(line: str) -> DryRunJob:
    try:
        return DryRunJob.model_validate_json(line)
    except ValidationError as error:
        raise InvalidDocument.from_pydantic(error, kind="dry run job", source="stdin") from None


if __name__ == "__main__":
    sys.exit(main())

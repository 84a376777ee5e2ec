"""A profile from whatever file holds measurements."""

import json
from pathlib import PurePath

from planner.profiles.errors import NoMeasurements
from planner.profiles.kineto import read_trace
from planner.profiles.table import read_table
from planner.schema import InconsistentRequest, InvalidDocument, ModelDescription, Profile


def read_measurements(
    text: str,
    *,
    is_table: bool,
    model: ModelDescription | None,
    size: tuple[int, int | None],
    name: str | None,
    source: str,
) -> Profile:
    """Read a table, a trace, a profile, or a file that lists profiles, as `scripts/gpu_check.py` writes it.

    Args:
        text: of the file.
        is_table: comma-separated values; otherwise JSON.
        model: for a trace, what was trained.
        size: for a trace, micro-batch and tokens per sequence.
        name: of the profile, or which one of a list; None takes that of the file, and the only one of a list.
        source: the file, for errors.

    Raises:
        InconsistentRequest: a trace without its model or size.
        InvalidDocument: the text is none of these.
        NoMeasurements: it holds nothing for a profile.
    """
    named = name or PurePath(source).stem or "profile"
    if is_table:
        return read_table(text, name=named, source=source)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"{source} is not JSON: {error}") from None
    if isinstance(value, list) or "traceEvents" in value:
        micro_batch, sequence = size
        if model is None or sequence is None:
            raise InconsistentRequest(f"{source} is a trace; give --model and --seq of what was trained")
        return read_trace(text, model, micro_batch=micro_batch, sequence=sequence, name=named, source=source)
    if not isinstance(value, dict):
        raise InvalidDocument(f"{source} holds {type(value).__name__}; expected a profile, a trace or a table")
    if "profiles" in value:
        return _of_list(value["profiles"], name, source)
    profile = Profile.from_object(value, source=source)
    return profile if name is None else profile.model_copy(update={"name": name})


def _of_list(values: object, name: str | None, source: str) -> Profile:
    found = [Profile.from_object(value, source=source) for value in values] if isinstance(values, list) else []
    chosen = [profile for profile in found if name in (None, profile.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(profile.name for profile in found)
    if not names:
        raise NoMeasurements(f"{source} lists no profile")
    raise InconsistentRequest(f"{source} holds the profiles {names}; choose one with --name")

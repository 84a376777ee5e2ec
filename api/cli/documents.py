"""Reading and writing documents: files, and the examples that the package ships."""

from pathlib import Path
from typing import TypeVar

from planner.schema import (
    ClusterDescription,
    Decisions,
    Document,
    InvalidDocument,
    ModelDescription,
    Plan,
    PlanBody,
    Profile,
    UnknownName,
)

D = TypeVar("D", bound=Document)


def load_model(place: str) -> ModelDescription:
    """A model description from a file or by the name of a shipped one.

    Raises:
        UnknownName: neither a file nor a shipped name.
        InvalidDocument: the text does not match the contract.
    """
    return read_document(ModelDescription, _locate(place, folder="models", what="model"))


def load_cluster(place: str) -> ClusterDescription:
    """A cluster description; as `load_model`."""
    return read_document(ClusterDescription, _locate(place, folder="clusters", what="cluster"))


def load_profile(path: Path) -> Profile:
    """Measurements from a file."""
    return read_document(Profile, path)


def load_plan(path: Path) -> PlanBody:
    """A plan from a file: a body, or a body in its envelope.

    Raises:
        InvalidDocument: the text matches neither, or the body is not the one that its envelope names.
    """
    text = read_text(path)
    value = _json_object(text, path)
    if "body" not in value:
        return PlanBody.from_json(text, source=str(path))
    plan = Plan.from_json(text, source=str(path))
    if not plan.verify():
        raise InvalidDocument(
            f"{path}: the body is not that of plan {plan.envelope.plan_id}; it was changed after planning, "
            "so plan again"
        )
    return plan.body


def load_decisions(path: Path) -> Decisions:
    """Decisions from a file that holds them alone, or a plan; errors as `load_planned`."""
    return load_planned(path)[0]


def load_planned(path: Path) -> tuple[Decisions, str | None]:
    """Decisions from a file that holds them alone, or a plan, with the fingerprint of the plan's model.

    Raises:
        InvalidDocument: the text is neither, or the plan is infeasible and has none.
    """
    value = _json_object(read_text(path), path)
    if "units" in value:
        from pydantic import ValidationError

        try:
            return Decisions.model_validate(value), None
        except ValidationError as error:
            raise InvalidDocument.from_pydantic(error, kind="set of decisions", source=str(path)) from None
    plan = load_plan(path)
    if plan.decisions is None:
        raise InvalidDocument(f"{path}: this plan is infeasible and has no decisions; simulate another one")
    return plan.decisions, plan.model_fingerprint


def read_document(kind: type[D], path: Path) -> D:
    """A document of one kind from a file.

    Raises:
        InvalidDocument: the text does not match the contract.
        OSError: the file cannot be read.
    """
    return kind.from_json(read_text(path), source=str(path))


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InvalidDocument: the file is not UTF-8.
        OSError: the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidDocument(f"{path} is not UTF-8 text; expected a JSON document") from None


def require_place(path: Path) -> None:
    """Refuse a place where no document can be written, before any work is done for it.

    Raises:
        OSError: the folder does not exist, or the place is a folder itself.
    """
    if path.is_dir():
        raise IsADirectoryError(21, "is a folder; name a file in it", str(path))
    if not path.resolve().parent.is_dir():
        raise FileNotFoundError(2, "no such folder to write to", str(path.parent))


def write_document(document: Document, path: Path) -> None:
    """Write a document so that a reader never sees half of it."""
    path = path.resolve()
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(document.to_json(), encoding="utf-8")
    partial.replace(path)


def shipped(folder: str) -> dict[str, Path]:
    """Names and files of the shipped documents in `models` or `clusters`."""
    return {path.stem: path for path in sorted((_examples() / folder).glob("*.json"))}


def _examples() -> Path:
    package = Path(__file__).resolve().parent.parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"


def _locate(place: str, *, folder: str, what: str) -> Path:
    path = Path(place)
    if path.exists():
        return path
    known = shipped(folder)
    if place in known:
        return known[place]
    if path.suffix or path.parent != Path("."):
        raise FileNotFoundError(2, f"no such file; shipped {folder}: {', '.join(known) or 'none'}", place)
    raise UnknownName(f"{what} (no such file either)", place, list(known))


def _json_object(text: str, path: Path) -> dict[str, object]:
    import json

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidDocument(f"{path} is not JSON: line {error.lineno}, {error.msg.lower()}") from None
    except (ValueError, RecursionError):
        raise InvalidDocument(
            f"{path} is no document of ours: it is nested too deep, or has too long a number"
        ) from None
    if not isinstance(value, dict):
        raise InvalidDocument(f"{path} holds {type(value).__name__}; expected a JSON object")
    return value

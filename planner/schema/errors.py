"""Errors that a user can mend: each names what is wrong, where, and the remedy."""

from typing import Self

from pydantic import ValidationError


class ShardwrightError(ValueError):
    """Base of all errors caused by input; `code` is stable and goes into problem documents."""

    code = "invalid"


class InvalidDocument(ShardwrightError):
    """A document that does not match the contract.

    `problems` lists `(path, message)`, the path being a JSON path such as `modules[3].path`.
    """

    code = "invalid_document"

    def __init__(self, message: str, *, problems: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems

    @classmethod
    def from_pydantic(cls, error: ValidationError, *, kind: str, source: str) -> Self:
        """Turn pydantic's report into one readable message."""
        problems = tuple(
            (_json_path(item["loc"]), item["msg"].removeprefix("Value error, "))
            for item in error.errors(include_url=False)
        )
        shown = "; ".join(f"{path or '(document)'}: {message}" for path, message in problems[:5])
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        return cls(f"{source} is not a valid {kind}: {shown}{more}", problems=problems)


class UnsupportedField(ShardwrightError):
    """The contract declares this field, but this planner does not honour it yet."""

    code = "unsupported_field"

    def __init__(self, path: str, remedy: str) -> None:
        super().__init__(f"{path} is declared in the contract but not honoured by this planner: {remedy}")
        self.path = path


class InconsistentRequest(ShardwrightError):
    """Each document is valid alone, but together they contradict each other."""

    code = "inconsistent_request"


class UnknownName(ShardwrightError):
    """A name that no catalog or store knows."""

    code = "unknown_name"

    def __init__(self, what: str, name: str, known: list[str]) -> None:
        super().__init__(f"unknown {what} {name!r}; known: {', '.join(sorted(known))}")
        self.name = name


def _json_path(location: tuple[int | str, ...]) -> str:
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text

"""Errors on the command line: one red line that says what, where and the remedy; never a traceback for input."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from typer.core import TyperGroup
from typer.exceptions import Abort, TyperException

INTERRUPTED = 130
"""Exit code after ctrl-C, as shells have it (128 + SIGINT)."""
USER_ERROR = 2
"""Exit code of an error that the user can mend."""

_EXTRAS = {
    "torch": "torch (the trainer's own; any release from 2.11)",
    "transformers": "transformers",
    "ortools": "'shardwright[cli]'",
    "numpy": "'shardwright[cli]'",
    "fastapi": "'shardwright[server]'",
    "uvicorn": "'shardwright[server]'",
    "sqlalchemy": "'shardwright[server]'",
    "alembic": "'shardwright[server]'",
    "dbos": "'shardwright[server]'",
    "jinja2": "'shardwright[server]'",
    "structlog": "'shardwright[server]'",
    "pydantic_settings": "'shardwright[server]'",
    "prometheus_client": "'shardwright[server]'",
    "jwt": "'shardwright[server]'",
    "cryptography": "'shardwright[server]'",
    "psycopg": "'shardwright[server]'",
}


def message_of(error: BaseException) -> str | None:
    """One line for an error that the user can mend; None for everything else (a fault of ours)."""
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        remedy = _EXTRAS.get(package)
        return None if remedy is None else f"this command needs {package}; install it with: pip install {remedy}"
    if isinstance(error, TyperException):
        return error.format_message()
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {(error.strerror or str(error)).lower()}"
    if "planner.schema.errors" in sys.modules:
        from planner.schema.errors import ShardwrightError

        if isinstance(error, ShardwrightError):
            return str(error)
    return None


class Commands(TyperGroup):
    """The group of commands, with the project's way of reporting errors and interruption."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401 - as the base has it
    ) -> NoReturn:
        """Run and exit the process with the code of the command."""
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except (KeyboardInterrupt, Abort):
            code = INTERRUPTED
        except Exception as error:
            message = message_of(error)
            if message is None:
                raise
            _print_error(message)
            code = USER_ERROR
        if code == INTERRUPTED:
            _print_error("interrupted before there was anything to keep")
        sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    from api.cli.render.console import stderr

    line = " ".join(message.split())
    stderr().print(f"[error]error:[/error] {_escaped(line)}", highlight=False, soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)

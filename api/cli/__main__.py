"""`shardwright`: the entry point of the command line."""

import sys

_INTERRUPTED = 130
_NEEDS_CLI = "error: the command line needs further packages; install them with: pip install 'shardwright[cli]'"


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words after the program name; None takes those of the process.

    Returns:
        0 on success, 1 when a check found problems, 2 on an error of the user, 3 when no plan fits, 130 when
        interrupted.
    """
    try:
        from api.cli.commands import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(_NEEDS_CLI, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    words = sys.argv[1:] if arguments is None else arguments
    try:
        app(words or ["--help"], prog_name="shardwright")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`shardwright version`."""

import typer


def version() -> None:
    """Print the version of Shardwright and of what it runs on."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    from planner import __version__

    typer.echo(f"shardwright {__version__}")
    typer.echo(f"python {platform.python_version()}")
    for package in ("ortools", "torch", "fastapi"):
        try:
            typer.echo(f"{package} {installed(package)}")
        except PackageNotFoundError:
            typer.echo(f"{package} not installed")

"""Options that several commands have: a model as torch has it, and where to write."""

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[
    str | None,
    typer.Argument(metavar="TARGET", help="pkg.module:build, a callable that makes a TrainingExample."),
]
HfConfig = Annotated[
    Path | None,
    typer.Option("--hf", metavar="FILE", help="A config.json of transformers instead; no weights are loaded."),
]
Sequence = Annotated[int, typer.Option("--seq", metavar="TOKENS", help="Tokens per sequence.")]
MicroBatch = Annotated[int, typer.Option(metavar="SEQUENCES", help="Sequences per forward.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
]

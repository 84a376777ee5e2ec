"""What the search is doing, on stderr: one live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from api.quantities import duration, percent, size

if TYPE_CHECKING:
    from planner.plan import Progress


class ProgressLine:
    """Receives `Progress` while a plan is made; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._latest: Progress | None = None
        self._printed = ""
        self._started = time.monotonic()
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line", style="figure")
        self._live = Live(self, console=console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def __call__(self, progress: "Progress") -> None:
        """Show the latest state."""
        self._latest = progress
        if self._console.is_terminal:
            return
        text = state_text(progress).plain
        if text != self._printed:
            self._printed = text
            self._console.print(f"{progress.elapsed_s:7.1f} s  {text}", soft_wrap=True, markup=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        elapsed = time.monotonic() - self._started
        state = Text("reading the request") if self._latest is None else state_text(self._latest)
        line = Text.assemble((f"{elapsed:6.1f} s  ", "quiet"), state)
        line.truncate(max(10, options.max_width - 3), overflow="ellipsis")
        self._spinner.update(text=line)
        yield self._spinner


def state_text(progress: "Progress") -> Text:
    """`best 612.4 ms  bound 605.1 ms  gap 1.2 %  trying ...`."""
    is_memory = progress.incumbent_bytes is not None
    words: Callable[[int], str] = size if is_memory else duration
    best = progress.incumbent_bytes if is_memory else progress.incumbent_ns
    bound = progress.bound_bytes if is_memory else progress.bound_ns
    text = Text("no plan yet" if best is None else f"best {words(best)}", style="figure")
    # Before the first plan not every global choice has been looked at, so that a bound would bound nothing.
    if best and bound is not None:
        text.append(f"  bound {words(bound)}  gap {percent(max(0, best - bound) / best)}", style="none")
    if progress.message:
        text.append(f"  {progress.message}", style="quiet")
    return text

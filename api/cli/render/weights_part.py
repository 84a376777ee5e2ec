"""How the weights of a planned model can be loaded and saved: a line for each, with the memory of each way."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from api.cli.render.arrange import indented
from api.quantities import size
from planner.schema import WeightsWay

_WORDS = {"every_rank": "every rank", "rank_0": "rank 0", "shards": "shards", "on_device": "on a device"}
_TASKS = {"load": "load  ", "save": "save  "}


def weights_part(ways: Sequence[WeightsWay]) -> RenderableType | None:
    """None for plans that do not say."""
    if not ways:
        return None
    lines = [
        indented(Text.assemble((words, "quiet"), Text(", ").join(_way(way) for way in ways if way.task == task)))
        for task, words in _TASKS.items()
    ]
    title = Text.assemble(("Weights", "title"), (", memory of a node, or of a device where said", "quiet"))
    return Group(title, *lines)


def _way(way: WeightsWay) -> Text:
    words = Text.assemble(f"{_WORDS[way.way]} ", (size(way.needed_bytes), "figure"))
    if not way.fits:
        words.append(f" of {size(way.limit_bytes)}: does not fit", style="warning")
    return words

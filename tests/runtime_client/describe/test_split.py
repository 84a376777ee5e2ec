"""Where blocks are split, and what becomes of modules that run several times."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from planner.schema import CallKind, CallRole, ModelDescription
from runtime_client.describe import TrainingExample, describe
from runtime_client.describe.frontier import FrontierModule, find_frontier
from runtime_client.describe.split import Split, SplitRule, split_frontier


class Experts(nn.Module):
    def __init__(self, width: int, num_experts: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_experts, width, width))

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        return torch.einsum("bsd,edh,bse->bsh", x, self.weight, scores)


class Mixture(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = Experts(width)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.experts(x, self.router(x).softmax(-1))
        return mixed


class Block(nn.Module):
    """Two lists without a forward, a child without parameters, one that runs twice, and a mixture of experts."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.pair = nn.ModuleList([nn.Linear(width, width), nn.ModuleDict({"inner": nn.Linear(width, width)})])
        self.drop = nn.Dropout(0.5)
        self.mixture = Mixture(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.pair[0](self.norm(x))
        x = x + self.drop(self.pair[1]["inner"](self.norm(x)))
        return x + self.mixture(x)


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def relative(split: Split, block: str = "layers.1") -> dict[str, CallRole]:
    return {
        item.path.removeprefix(f"{block}."): item.role
        for item in split.frontier
        if item.path.startswith(f"{block}.")
    }


def test_lists_without_forward_are_looked_through_and_children_without_parameters_left_out() -> None:
    split = split_frontier(find_frontier(Stack()), SplitRule(), 0)
    assert split.modules == {"layers.0", "layers.1", "layers.2"}
    children = ("norm", "pair.0", "pair.1.inner", "mixture")
    assert relative(split) == dict.fromkeys(children, CallRole.BLOCK)
    roles = {item.path: item.role for item in split.frontier}
    assert roles["layers.1"] is CallRole.GLUE


def test_only_what_holds_experts_is_split_again() -> None:
    first = split_frontier(find_frontier(Stack()), SplitRule(), 0)
    second = split_frontier(first.frontier, SplitRule(), 1)
    assert second.modules == {f"layers.{index}.mixture" for index in range(3)}
    assert relative(second, "layers.1.mixture") == {"router": CallRole.BLOCK, "experts": CallRole.BLOCK}
    assert relative(second)["norm"] is CallRole.OTHER
    assert not split_frontier(second.frontier, SplitRule(), 2).modules


def test_the_rule_says_what_experts_are() -> None:
    first = split_frontier(find_frontier(Stack()), SplitRule(), 0).frontier
    assert not split_frontier(first, SplitRule(experts_word="specialist"), 1).modules
    assert not split_frontier(first, SplitRule(min_experts_share=0.99), 1).modules
    assert split_frontier(first, SplitRule(experts_word="router", min_experts_share=0.0), 1).modules


def test_skipped_blocks_have_no_parts() -> None:
    split = split_frontier(find_frontier(Stack()), SplitRule(), 0, skipped=frozenset({"layers.1"}))
    assert relative(split) == {}
    assert "layers.1" in split.modules


def test_a_block_without_such_children_stays_whole() -> None:
    items = (FrontierModule(path="layers.0", module=nn.Linear(2, 2), role=CallRole.BLOCK),)
    split = split_frontier(items, SplitRule(), 0)
    assert not split.modules
    assert split.frontier[0].role is CallRole.OTHER


def described(model: Callable[[], nn.Module]) -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(
            model=model(),
            inputs=lambda micro_batch, sequence: ((torch.zeros(micro_batch, sequence, 16),), {}),
            loss=lambda output, args, kwargs: output.square().mean(),
        )

    return describe(build, name="stack", micro_batch=2, sequence=32, param_dtype=None)


def parts_of(model: ModelDescription, path: str) -> list[list[tuple[str, CallKind]]]:
    """Parts of each call at a path."""
    kinds = [model.kinds[call.kind] for call in model.calls if call.path == path]
    return [[(part.path, model.kinds[part.kind]) for part in kind.parts] for kind in kinds]


def test_a_child_that_runs_twice_is_two_parts_and_its_gradient_comes_with_the_first() -> None:
    (parts,) = parts_of(described(Stack), "layers.1")
    paths = ["norm", "pair.0", "", "norm", "pair.1.inner", "", "mixture", ""]
    assert [path for path, _ in parts] == paths
    assert parts[0][1].gradient_order == ("weight", "bias")
    assert parts[3][1].gradient_order == ()
    assert {region.module for region in parts[5][1].regions} == {"", "drop"}


class Repeated(Stack):
    """The second layer runs twice in a row, then the first one again."""

    def forward(self, x: Tensor) -> Tensor:
        for index in (0, 1, 1, 2, 0):
            x = self.layers[index](x)
        return x


def test_each_run_of_a_block_has_parts_of_its_own() -> None:
    model = described(Repeated)
    first, second = parts_of(model, "layers.1")
    (once,) = parts_of(described(Stack), "layers.1")
    assert [path for path, _ in first] == [path for path, _ in second] == [path for path, _ in once]
    assert [kind.gradient_order for _, kind in first] == [kind.gradient_order for _, kind in once]
    assert not any(kind.gradient_order for _, kind in second)
    for runs in (first, second):
        kept = [kind.none.kept_bytes(2, 32) for _, kind in runs]
        assert kept == [kind.none.kept_bytes(2, 32) for _, kind in once]


class Common(Stack):
    """All layers have one norm in common."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            layer.norm = self.layers[0].norm


def test_a_child_that_several_blocks_have_in_common_belongs_to_the_code_around_it() -> None:
    model = described(Common)
    for index in range(3):
        (parts,) = parts_of(model, f"layers.{index}")
        assert [path for path, _ in parts] == ["", "pair.0", "", "pair.1.inner", "", "mixture", ""]
    (parts,) = parts_of(model, "layers.0")
    assert [name for path, kind in parts if not path for name in kind.gradient_order] == [
        "norm.weight",
        "norm.bias",
    ]

"""Checks of ragged layouts against the model, before anything is changed."""

import difflib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from torch import nn

from planner.schema import Decisions, Layout
from runtime_client.fingerprint import element_type
from runtime_client.ragged.errors import InvalidLayout, UnequalRanks
from runtime_client.ragged.private import check_torch

if TYPE_CHECKING:
    from runtime_client.apply.units import Unit


def check_layouts(units: "Sequence[Unit]", decisions: Decisions) -> None:
    """Layouts must be those of the units, and cover each parameter of such a unit once.

    Raises:
        UnsupportedTorch: this torch cannot hold ragged buffers.
        InvalidLayout, UnequalRanks: see each.
    """
    if not decisions.layouts and not any(unit.plan.layouts or unit.plan.alias_gathers for unit in units):
        return
    check_torch()
    layouts = _by_name(decisions)
    used: dict[str, str] = {}
    for unit in units:
        covered: dict[int, str] = {}
        for name in unit.plan.layouts:
            where = f"{unit.where}.layouts"
            if name not in layouts:
                raise InvalidLayout(f"{where}: decisions.layouts has no {name!r}. Plan again.")
            if name in used:
                raise InvalidLayout(f"{where}: {name!r} is the layout of {used[name]} already. Give it one unit.")
            used[name] = unit.where
            _check_layout(layouts[name], unit, decisions, covered)
        if unit.plan.layouts:
            _check_covered(unit, covered)
        _check_alias(unit, decisions)
    unused = sorted(set(layouts) - set(used))
    if unused:
        raise InvalidLayout(f"decisions.layouts: no unit uses {', '.join(unused)}. Name them in units[..].layouts.")


def _check_alias(unit: "Unit", decisions: Decisions) -> None:
    if not unit.plan.alias_gathers:
        return
    num, ranks = len(unit.plan.layouts), decisions.mesh_of(unit.plan).shard
    if num != 1 or ranks == 1:
        raise InvalidLayout(
            f"{unit.where}.alias_gathers: a unit is gathered in place where it has one layout on several ranks; "
            f"this one has {num} on {ranks}. Leave alias_gathers out."
        )


def _by_name(decisions: Decisions) -> dict[str, Layout]:
    found: dict[str, Layout] = {}
    for index, layout in enumerate(decisions.layouts):
        if layout.name in found:
            raise InvalidLayout(f"decisions.layouts[{index}]: {layout.name!r} is the name of an earlier layout.")
        found[layout.name] = layout
    return found


def _check_layout(layout: Layout, unit: "Unit", decisions: Decisions, covered: dict[int, str]) -> None:
    where = f"layout {layout.name!r} of {unit.where}"
    if not layout.entries:
        raise InvalidLayout(f"{where} has no entries. Leave it out.")
    own = dict(unit.parameters)
    kinds: dict[bool, str] = {}
    elsewhere = {entry.parameter for entry in decisions.shard_dims}
    for entry in layout.entries:
        name = entry.parameter
        parameter = _find(name, own, where)
        if id(parameter) in covered:
            raise InvalidLayout(
                f"{where}: {name!r} has a place already, as {covered[id(parameter)]!r}. List it once."
            )
        covered[id(parameter)] = name
        stored = element_type(name, parameter.dtype)
        if stored is not layout.dtype:
            raise InvalidLayout(f"{where} is of {layout.dtype}, but {name!r} is stored as {stored}.")
        if parameter.numel() != entry.num_elements or not entry.num_elements:
            raise InvalidLayout(
                f"{where}: {name!r} has {parameter.numel()} elements, its entry {entry.num_elements}. Plan again."
            )
        if name in elsewhere:
            raise InvalidLayout(f"{where}: {name!r} is in decisions.shard_dims too. Use one of the two.")
        kinds.setdefault(parameter.requires_grad, name)
    if len(kinds) > 1:
        raise InvalidLayout(
            f"{where}: {kinds[True]!r} requires a gradient and {kinds[False]!r} does not. Give each kind a layout."
        )
    _check_places(layout, where, decisions.mesh_of(unit.plan).shard)


def _find(name: str, own: Mapping[str, nn.Parameter], where: str) -> nn.Parameter:
    if name in own:
        return own[name]
    close = difflib.get_close_matches(name, own, n=3)
    hint = f"nearest: {', '.join(close)}" if close else f"it has {len(own)}"
    raise InvalidLayout(f"{where}: the unit has no parameter {name!r} ({hint}). Plan this model again.")


def _check_places(layout: Layout, where: str, num_ranks: int) -> None:
    entries = sorted(layout.entries, key=lambda entry: entry.offset_elements)
    for entry, following in pairwise(entries):
        if entry.offset_elements + entry.num_elements > following.offset_elements:
            raise InvalidLayout(f"{where}: {entry.parameter!r} and {following.parameter!r} overlap.")
    end = entries[-1].offset_elements + entries[-1].num_elements
    if end > num_ranks * layout.shard_elements:
        raise UnequalRanks(
            f"{where} ends at element {end}, but {num_ranks} ranks of {layout.shard_elements} elements hold "
            f"{num_ranks * layout.shard_elements}. FSDP2 gives every rank the same: a layout with more on some "
            "ranks cannot be applied. Plan again with equal rank capacities."
        )


def _check_covered(unit: "Unit", covered: Mapping[int, str]) -> None:
    for name, parameter in unit.parameters:
        if id(parameter) not in covered:
            raise InvalidLayout(
                f"{unit.where}: {name!r} has a place in none of the layouts {list(unit.plan.layouts)}. Give every "
                "parameter of the unit one, or the unit no layouts."
            )

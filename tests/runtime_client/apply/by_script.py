"""Dry runs, from stdin as `runtime_client.dryrun` takes them, of what the Python of a plan shards."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily

from planner.schema import Decisions
from planner.script import calls
from runtime_client.apply import AppliedPlan
from runtime_client.dryrun import __main__ as dryrun
from runtime_client.dryrun import rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted(AppliedPlan):
    """A model that the script has sharded; `AppliedPlan` itself does nothing for it."""

    functions: dict[str, Any]

    def begin_micro_batch(self, index: int) -> None:
        if "begin_micro_batch" in self.functions:
            self.functions["begin_micro_batch"](self.model, index)

    def after_optimizer_step(self) -> None:
        if "after_optimizer_step" in self.functions:
            self.functions["after_optimizer_step"](self.model, self.mesh.device_type)


def of_real_tensors(build: Callable[..., Any]) -> Callable[..., Any]:
    """A mesh has tensors of its own, which must not be fake."""

    def built(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return build(*args, **kwargs)

    return built


def shard_by_script(model: Any, decisions: Decisions, mesh: Any) -> AppliedPlan:
    functions: dict[str, Any] = {}
    exec(calls(decisions), functions)
    functions["init_device_mesh"] = of_real_tensors(functions["init_device_mesh"])
    functions["shard"](model, mesh.device_type)
    return Scripted(model=model, mesh=mesh, decisions=decisions, functions=functions)


if __name__ == "__main__":
    rehearsal.apply_decisions = shard_by_script
    sys.exit(dryrun.main())

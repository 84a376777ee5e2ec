"""One rank: measures a profile, plans, then takes the steps of all arms by turns. Run by `benchmarks.network.cell`.

    python -m benchmarks.network.rank JOB.json OUTPUT.json

Rank, world size and the address of rank 0 come from the environment, as torchrun gives them.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.network import arms, cluster
from benchmarks.network.arms import Arm, Shape
from benchmarks.network.interference import MOST, TRIES, Interference, most_of_ranks
from benchmarks.network.job import Job, Variant
from benchmarks.network.models import MODELS
from benchmarks.network.profiling import (
    SIZES_BYTES,
    CallTimer,
    Part,
    Samples,
    add_copies,
    add_optimizer,
    add_overlap,
    add_transfers,
    forward_and_backward,
    profile_of,
    timed,
)
from benchmarks.network.training import Trainer
from benchmarks.network.wire import Wire
from planner.plan import make_plan
from planner.schema import Decisions, HostRuns, ModelDescription, PlanRequest, Profile
from planner.simulate import predict

_STOCK_ROUNDS = 3
"""It is there for the record, and slow."""


def main() -> None:
    """See the module."""
    job = Job.from_json(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    _init_gloo()
    ranks = Ranks(job)
    found = [ranks.measured(variant) for variant in job.variants]
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(found))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def _init_gloo() -> None:
    """One thread for transfers, so that they follow each other in the order of issue, as on a card."""

    def create(store: Any, rank: int, size: int, timeout: Any) -> Any:  # noqa: ANN401 - c10d's
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(interface=os.environ["GLOO_SOCKET_IFNAME"])]
        options._threads = 1
        options._timeout = timeout
        return gloo(store, rank, size, options)

    dist.Backend.register_backend("gloo_in_order", create, devices=["cpu"])
    dist.init_process_group("cpu:gloo_in_order")


class Ranks:
    """What this rank keeps from variant to variant."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.world = dist.get_world_size()
        self.spec = MODELS[job.model]
        self.description = ModelDescription.from_json(job.description)
        self.mesh = init_device_mesh("cpu", (self.world,), mesh_dim_names=("shard",))
        self.wire = Wire()
        torch.manual_seed(1 + dist.get_rank())
        tokens = torch.randint(0, self.spec.vocabulary, (self.spec.micro_batch, self.spec.sequence))
        self.inputs: Any = ((tokens,), {})

    def measured(self, variant: Variant) -> dict[str, object]:
        """Profile, plan and steps of one variant."""
        profiler = self.profiler()
        profiler.run(self.job.profile_rounds)
        request = self.request(self.agreed(profiler.profile(), Profile), variant)
        shape = Shape(
            num_blocks=self.spec.num_blocks,
            num_ranks=self.world,
            micro_batch=self.spec.micro_batch,
            num_micro_batches=variant.num_micro_batches,
        )
        chosen, budget, plan = self.arms(request, shape, variant)
        trainers = self.steps(chosen, profiler)
        profile = self.agreed(profiler.profile(), Profile)
        request = request.model_copy(update={"profile": profile})
        stock = self.agreed(profiler.profile(is_stock=True), Profile)
        return {
            "model": self.job.model,
            "megabits": self.job.megabits,
            "delay_us": self.job.delay_us,
            "ranks": self.world,
            **asdict(variant),
            "budget_bytes": budget,
            "plan": plan,
            "spread": profiler.samples.spread("backward block"),
            "profile": json.loads(profile.to_json()),
            "arms": [
                self._row(arm, request.model_copy(update={"profile": stock}) if arm.is_stock else request, one)
                for arm, one in zip(chosen, trainers, strict=True)
            ],
        }

    # Profile

    def profiler(self) -> "Profiler":
        """What measures these ranks."""
        sharded = Trainer(self.spec.example(), self.default(), self.mesh, self.inputs, self.wire)
        sharded.step()
        sharded.fill_gradients()
        return Profiler(self, sharded)

    def unit_bytes(self) -> int:
        """Gathered bytes of a block."""
        return 4 * sum(
            parameter.num_elements
            for name, parameter in self.description.iter_parameters()
            if name.startswith("layers.0.")
        )

    def default(self) -> Decisions:
        """FSDP2's default knobs."""
        shape = Shape(
            num_blocks=self.spec.num_blocks,
            num_ranks=self.world,
            micro_batch=self.spec.micro_batch,
            num_micro_batches=1,
        )
        return arms.by_hand(shape)

    # Plan

    def request(
        self,
        profile: Profile,
        variant: Variant,
        budget_bytes: int | None = None,
        host_runs: HostRuns = HostRuns.KERNELS,
    ) -> PlanRequest:
        """What is planned for."""
        return cluster.request(
            self.description,
            profile,
            num_ranks=self.world,
            point=(self.spec.micro_batch, self.spec.sequence),
            num_micro_batches=variant.num_micro_batches,
            megabits=self.job.megabits,
            budget_bytes=budget_bytes,
            host_runs=host_runs,
        )

    def arms(self, request: PlanRequest, shape: Shape, variant: Variant) -> tuple[list[Arm], int | None, object]:
        """All that fit the budget, the plan last but for the stock collectives; the budget; the certificate."""
        plain, checkpointed = arms.defaults(shape)
        budget = None
        if variant.is_tight:
            least, most = (predict(request, arm.decisions).peak.reserved_bytes for arm in (checkpointed, plain))
            budget = least + (most - least) // 4
            request = cluster.within(request, budget)
        by_hand = [plain, checkpointed, *(arms.grid(shape) if self.job.has_grid else ())]
        fitting = [arm for arm in by_hand if self._fits(request, arm, budget)]
        if budget is None:
            fitting = [arm for arm in fitting if not arm.decisions.activations]
        body = make_plan(request).body if dist.get_rank() == 0 else None
        decisions = self.agreed(body.decisions if body else None, Decisions)
        certificate = json.loads(body.certificate.model_dump_json()) if body else None
        stock = Arm(name=arms.STOCK, decisions=(fitting[0]).decisions, is_stock=True)
        return [*fitting, Arm(name=arms.PLAN, decisions=decisions), stock], budget, certificate

    @staticmethod
    def _fits(request: PlanRequest, arm: Arm, budget: int | None) -> bool:
        return budget is None or predict(request, arm.decisions).peak.reserved_bytes <= budget

    def agreed(self, value: Any, kind: Any) -> Any:  # noqa: ANN401
        """Rank 0's document on every rank."""
        words = [value.model_dump_json() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(words, src=0)
        return kind.model_validate_json(words[0])

    # Steps

    def steps(self, chosen: list[Arm], profiler: "Profiler") -> list["Steps"]:
        """Every arm takes a step by turns, and a round of the profile follows."""
        trainers = [
            Trainer(self.spec.example(), arm.decisions, self.mesh, self.inputs, None if arm.is_stock else self.wire)
            for arm in chosen
        ]
        found = [Steps(losses=[trainer.step().item(), trainer.step().item()]) for trainer in trainers]
        watch = Interference()
        for number in range(TRIES * self.job.rounds):
            for arm, trainer, steps in zip(chosen, trainers, found, strict=True):
                if steps.num_undisturbed >= self.job.rounds or (arm.is_stock and number >= _STOCK_ROUNDS):
                    continue
                dist.barrier()
                watch.begin()
                taken_ns, loss = trainer.timed_step()
                waited = most_of_ranks(watch.end())
                steps.waited.append(waited)
                steps.times_ns.append(most_of_ranks(taken_ns))
                steps.losses.append(loss)
            if number < self.job.rounds:
                profiler.run(1)
        for trainer, steps in zip(trainers, found, strict=True):
            steps.peak_bytes = trainer.peak_bytes()
        return found

    def _row(self, arm: Arm, request: PlanRequest, steps: "Steps") -> dict[str, object]:
        runs = HostRuns.EVERYTHING if arm.is_stock else HostRuns.KERNELS
        expected = predict(cluster.run_by(request, runs), arm.decisions)
        decisions = json.loads(arm.decisions.model_dump_json(exclude_defaults=True))
        return {
            "name": arm.name,
            "median_ms": round(median(steps.least_disturbed(self.job.rounds)) / 1e6, 2),
            "predicted_ms": round(expected.step_time_ns / 1e6, 2),
            "peak_bytes": steps.peak_bytes,
            "predicted_peak_bytes": expected.peak.allocated_bytes,
            "predicted_reserved_bytes": expected.peak.reserved_bytes,
            "step_ms": [round(value / 1e6, 2) for value in steps.times_ns],
            "waited": [round(value, 4) for value in steps.waited],
            "losses": steps.losses,
            "breakdown": json.loads(expected.breakdown.model_dump_json()),
            "decisions": decisions if arm.name == arms.PLAN else None,
        }


@dataclass(slots=True, kw_only=True)
class Steps:
    """What one arm's steps took and gave."""

    losses: list[float]
    times_ns: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    """Share of each step; see `Interference`."""
    peak_bytes: int = 0

    @property
    def num_undisturbed(self) -> int:
        """Steps that count as such."""
        return sum(share <= MOST for share in self.waited)

    def least_disturbed(self, most: int) -> list[float]:
        """Times of so many steps."""
        return [time for _, time in sorted(zip(self.waited, self.times_ns, strict=True))[:most]]


class Profiler:
    """Measures by rounds, so that the steps of arms can take turns with it."""

    def __init__(self, ranks: Ranks, sharded: Trainer) -> None:
        self.samples = Samples()
        self._ranks = ranks
        self._sharded = sharded
        spec, world, unit_bytes = ranks.spec, ranks.world, ranks.unit_bytes()
        plain = spec.example()
        few = torch.ones(1000)
        sizes = [size for size in SIZES_BYTES if size <= 2 * max(2**22, unit_bytes)]
        self._parts: tuple[Part, ...] = (
            CallTimer(spec.example(), ranks.description, ranks.inputs).run,
            CallTimer(spec.example(), ranks.description, ranks.inputs, checkpointed=True).run,
            lambda one: add_transfers(one, ranks.wire, sizes),
            lambda one: add_transfers(one, None, sizes),
            lambda one: add_copies(one, world),
            lambda one: add_optimizer(one, sharded.optimizer),
            lambda one: add_overlap(one, lambda: forward_and_backward(plain, ranks.inputs), unit_bytes, ranks.wire),
            lambda one: one.add("launch", timed(lambda: [few.view(-1) for _ in range(100)]) // 100),
        )
        for part in self._parts:
            part(Samples())

    def run(self, rounds: int) -> None:
        """So many samples more of everything."""
        for part in self._parts:
            self.samples.collect(part, rounds)

    def profile(self, *, is_stock: bool = False) -> Profile:
        """Of all samples so far; `is_stock`: with gloo's own collectives."""
        spec = self._ranks.spec
        return profile_of(
            self.samples.slowest(),
            self._ranks.description,
            point=(spec.micro_batch, spec.sequence),
            num_ranks=self._ranks.world,
            num_optimizer_parameters=self._sharded.num_parameters,
            num_transfers=3 * spec.num_blocks,
            is_stock=is_stock,
        )


if __name__ == "__main__":
    main()

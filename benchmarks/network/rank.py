"""One rank: measures a profile, plans, then takes the steps of all arms by turns. Run by `benchmarks.network.cell`.

    python -m benchmarks.network.rank JOB.json OUTPUT.json

Rank, world size and the address of rank 0 come from the environment, as torchrun gives them.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from benchmarks.network import arms, cluster
from benchmarks.network.arms import Arm, Shape
from benchmarks.network.interference import MOST, TRIES, Interference, most_of_ranks
from benchmarks.network.job import Job, Variant
from benchmarks.network.models import MODELS
from benchmarks.network.profiling import (
    SIZES_BYTES,
    CallTimer,
    RecomputeTimer,
    Samples,
    add_copies,
    add_optimizer,
    add_overlap,
    add_transfers,
    profile_of,
    timed,
)
from benchmarks.network.training import Trainer
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
        torch.manual_seed(1 + dist.get_rank())
        tokens = torch.randint(0, self.spec.vocabulary, (self.spec.micro_batch, self.spec.sequence))
        self.inputs: Any = ((tokens,), {})

    def measured(self, variant: Variant) -> dict[str, object]:
        """Profile, plan and steps of one variant."""
        profile, spread = self.profile()
        request = self.request(profile, variant)
        shape = Shape(
            num_blocks=self.spec.num_blocks,
            num_ranks=self.world,
            micro_batch=self.spec.micro_batch,
            num_micro_batches=variant.num_micro_batches,
        )
        chosen, budget, plan = self.arms(request, shape, variant)
        rows = self.steps(chosen, request)
        return {
            "model": self.job.model,
            "megabits": self.job.megabits,
            "delay_us": self.job.delay_us,
            "ranks": self.world,
            **asdict(variant),
            "budget_bytes": budget,
            "plan": plan,
            "spread": spread,
            "profile": json.loads(profile.to_json()),
            "arms": rows,
        }

    # Profile

    def profile(self) -> tuple[Profile, float]:
        """A profile of these ranks, and the spread of the longest call: (p90 - p10) / median."""
        example = self.spec.example()
        block = example.model.get_submodule("layers.0")
        sharded = Trainer(self.spec.example(), self.default(), self.mesh, self.inputs, is_stock=False)
        sharded.step()
        sharded.fill_gradients()
        timer = CallTimer(example, self.description, self.inputs)
        x = torch.randn(self.spec.micro_batch, self.spec.sequence, _width(example.model))
        top = 4 * max(2**20, self.unit_bytes())
        sizes = [size for size in SIZES_BYTES if size <= 2 * top]
        samples = Samples()
        parts: tuple[Callable[[Samples], None], ...] = (
            timer.run,
            RecomputeTimer(self.spec.example(), self.description, tuple(x.shape)).run,
            lambda one: add_transfers(one, self.world, sizes),
            lambda one: add_copies(one, self.world),
            lambda one: add_optimizer(one, sharded.optimizer),
            lambda one: add_overlap(one, lambda: block(x).sum().backward(), self.unit_bytes(), self.world),
            lambda one: one.add("launch", timed(lambda: [x.view(-1) for _ in range(100)]) // 100),
        )
        for part in parts:
            part(Samples())
            samples.collect(part, self.job.profile_rounds)
        times = samples.slowest()
        profile = profile_of(
            times,
            self.description,
            point=(self.spec.micro_batch, self.spec.sequence),
            num_ranks=self.world,
            num_optimizer_parameters=sharded.num_parameters,
        )
        return self.agreed(profile, Profile), samples.spread("backward block")

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
        by_hand = [plain, checkpointed, *arms.grid(shape)]
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

    def steps(self, chosen: list[Arm], request: PlanRequest) -> list[dict[str, object]]:
        """Every arm takes a step by turns."""
        trainers = [
            Trainer(self.spec.example(), arm.decisions, self.mesh, self.inputs, is_stock=arm.is_stock)
            for arm in chosen
        ]
        times: list[list[int]] = [[] for _ in chosen]
        shares: list[list[float]] = [[] for _ in chosen]
        losses = [[trainer.step().item(), trainer.step().item()] for trainer in trainers]
        watch = Interference()
        for number in range(TRIES * self.job.rounds):
            for place, trainer in enumerate(trainers):
                wanted = _STOCK_ROUNDS if chosen[place].is_stock else self.job.rounds
                if sum(share <= MOST for share in shares[place]) >= wanted or _is_over(chosen[place], number):
                    continue
                dist.barrier()
                watch.begin()
                taken_ns, loss = trainer.timed_step()
                shares[place].append(most_of_ranks(watch.end()))
                losses[place].append(loss)
                times[place].append(taken_ns)
        peaks = [trainer.peak_bytes() for trainer in trainers]
        return [
            self._row(arm, request, _slowest(times[place]), shares[place], losses[place], peaks[place])
            for place, arm in enumerate(chosen)
        ]

    def _least_disturbed(self, times: list[float], shares: list[float]) -> list[float]:
        """The undisturbed steps, or as many of the least disturbed ones as there should be."""
        ordered = sorted(zip(shares, times, strict=True))
        return [time for _, time in ordered[: self.job.rounds]]

    def _row(
        self,
        arm: Arm,
        request: PlanRequest,
        times: list[float],
        shares: list[float],
        losses: list[float],
        peak: int,
    ) -> dict[str, object]:
        runs = HostRuns.EVERYTHING if arm.is_stock else HostRuns.KERNELS
        expected = predict(cluster.run_by(request, runs), arm.decisions)
        return {
            "name": arm.name,
            "step_ms": [round(value / 1e6, 2) for value in times],
            "waited": [round(value, 4) for value in shares],
            "median_ms": round(median(self._least_disturbed(times, shares)) / 1e6, 2),
            "predicted_ms": round(expected.step_time_ns / 1e6, 2),
            "breakdown": json.loads(expected.breakdown.model_dump_json()),
            "losses": losses,
            "peak_bytes": peak,
            "predicted_peak_bytes": expected.peak.allocated_bytes,
            "predicted_reserved_bytes": expected.peak.reserved_bytes,
            "decisions": json.loads(arm.decisions.model_dump_json(exclude_defaults=True))
            if arm.name == arms.PLAN
            else None,
        }


def _is_over(arm: Arm, number: int) -> bool:
    return arm.is_stock and number >= _STOCK_ROUNDS


def _slowest(values: list[Any]) -> list[float]:
    """Of each step, the most of all ranks."""
    most = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return [float(value) for value in most.tolist()]


def _width(model: nn.Module) -> int:
    embedding = model.get_submodule("embedding")
    assert isinstance(embedding, nn.Embedding)
    return embedding.embedding_dim


if __name__ == "__main__":
    main()

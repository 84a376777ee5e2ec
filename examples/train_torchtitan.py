r"""Train torchtitan's small Llama, sharded as a plan says. Needs torch and torchtitan (0.3.0 was tried).

torchtitan shards a model in the `parallelize_fn` of its `ModelSpec`. `planned` puts another into a spec, for the
Trainer of torchtitan on a GPU:

    spec = planned(model_registry("8B"), load_plan("plan.json"))

That Trainer needs an accelerator. What it does with the spec (build on the meta device, parallelize, materialise,
initialise, step on a summed loss) is done here with torchtitan's own parts on two processes of a CPU:

    shardwright describe examples.train_torchtitan:build --micro-batch 2 --seq 64 -o model.json
    shardwright plan model.json gloo-2 --micro-batch 2 --seq 64 --global-batch 8 -o plan.json
    torchrun --nproc-per-node 2 examples/train_torchtitan.py plan.json

Without a plan torchtitan parallelizes by its own function; the losses are the same:

    torchrun --nproc-per-node 2 examples/train_torchtitan.py
"""

import argparse
import dataclasses
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import parallel_dims as meshes
from torchtitan.distributed.fsdp import disable_fsdp_gradient_division
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry
from torchtitan.protocols.model_spec import ModelSpec

from planner.schema import Plan
from runtime_client.agreement import share_plan
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.client import load_plan
from runtime_client.describe import TrainingExample, token_inputs

NUM_STEPS = 5
SEQUENCE = 64
VOCABULARY = 2048
GLOBAL_BATCH = 8
MICRO_BATCH = 2
PARALLELISM = ParallelismConfig(spmd_backend="partial_dtensor")


def planned(spec: ModelSpec, plan: Plan) -> ModelSpec:
    """A model specification that is parallelized as a plan says."""
    parallelism = PlannedParallelism(plan)
    return dataclasses.replace(
        spec, parallelize_fn=parallelism.parallelize, post_optimizer_build_fn=parallelism.watch_optimizers
    )


class PlannedParallelism:
    """The two functions of a `ModelSpec` that a plan takes part in."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.applied: AppliedPlan | None = None

    def parallelize(
        self,
        model: nn.Module,
        *,
        parallel_dims: ParallelDims,
        training: TrainingConfig,
        parallelism: ParallelismConfig,
        compile_config: CompileConfig,
        ac_config: Any,
        dump_folder: str,
    ) -> nn.Module:
        """Precision, checkpointing, offload and resharding are the plan's, whatever the configuration says.

        torchtitan divides the summed loss by the tokens of all ranks, so FSDP2 must not divide by the ranks again.
        """
        if parallel_dims.tp * parallel_dims.pp * parallel_dims.cp * parallel_dims.ep > 1 or compile_config.enable:
            raise SystemExit("the plan is for data parallelism alone, without torch.compile")
        self.applied = apply_plan(model, self.plan)
        self.applied.check_batches(
            micro_batch=training.local_batch_size,
            num_micro_batches=training.global_batch_size // (training.local_batch_size * self.plan.body.world_size),
        )
        disable_fsdp_gradient_division(model)
        self.applied.count_micro_batches()
        return model

    def watch_optimizers(self, optimizers: Any, _: list[nn.Module], __: ParallelDims) -> None:
        assert self.applied is not None
        for optimizer in optimizers:
            self.applied.watch(optimizer)


def small_spec() -> ModelSpec:
    """The debug model, with the one attention of torchtitan that runs on a CPU without compiling."""
    spec = model_registry("debugmodel")
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
        layer.attention.rope.max_seq_len = SEQUENCE
    return spec


def build() -> TrainingExample:
    """What `shardwright describe` traces."""
    return TrainingExample(model=small_spec().model.build(), inputs=token_inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train torchtitan's small Llama on the CPU.")
    parser.add_argument("plan", nargs="?", help="plan file; without one torchtitan shards in its own way")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    spec = small_spec()
    if arguments.plan is not None:
        spec = planned(spec, share_plan(lambda: load_plan(arguments.plan)))
    train(spec)
    dist.destroy_process_group()


def train(spec: ModelSpec) -> None:
    """As torchtitan's Trainer: the order of its `__init__`, and of its `train_step`."""
    num_ranks = dist.get_world_size()
    meshes.device_type = "cpu"  # torchtitan takes "cuda" where it finds no accelerator
    parallel_dims = ParallelDims.from_config(PARALLELISM, num_ranks)
    with torch.device("meta"):
        model = spec.model.build()
    model = spec.parallelize_fn(
        model,
        parallel_dims=parallel_dims,
        training=TrainingConfig(
            local_batch_size=MICRO_BATCH, global_batch_size=GLOBAL_BATCH, mixed_precision_param="float32"
        ),
        parallelism=PARALLELISM,
        compile_config=CompileConfig(),
        ac_config=None,
        dump_folder="",
    )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other that does not divide
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if spec.post_optimizer_build_fn is not None:
        spec.post_optimizer_build_fn([optimizer], [model], parallel_dims)

    tokens = torch.randint(0, VOCABULARY, (GLOBAL_BATCH, SEQUENCE), generator=torch.Generator().manual_seed(1))
    own = tokens[dist.get_rank() :: num_ranks].split(MICRO_BATCH)
    num_labels = GLOBAL_BATCH * (SEQUENCE - 1)
    for step in range(NUM_STEPS):
        total = torch.zeros(())
        for batch in own:
            loss = cross_entropy_loss(model(batch)[:, :-1], batch[:, 1:]) / num_labels
            loss.backward()
            total += loss.detach()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item():.6f}", flush=True)


if __name__ == "__main__":
    main()

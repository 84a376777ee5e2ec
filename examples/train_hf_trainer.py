r"""Train a small Llama with `transformers.Trainer`, sharded as a plan says. Needs transformers and accelerate.

    shardwright describe examples.train_llama:build --micro-batch 2 --seq 64 -o model.json
    shardwright plan model.json gloo-2 --micro-batch 2 --seq 64 --global-batch 8 -o plan.json
    torchrun --nproc-per-node 2 examples/train_hf_trainer.py plan.json --cpu

Without a plan the Trainer takes DistributedDataParallel; the losses are the same:

    torchrun --nproc-per-node 2 examples/train_hf_trainer.py --cpu
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from train_llama import NUM_STEPS, build_model, leave, random_tokens
from transformers import Trainer, TrainerCallback, TrainingArguments

from runtime_client.agreement import share_plan
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.client import load_plan
from runtime_client.weights import load_checkpoint, save_checkpoint

GLOBAL_BATCH = 8
MICRO_BATCH = 2


class PlannedTrainer(Trainer):
    """A Trainer of a model that a plan has sharded already.

    Its own `fsdp` and `bf16` arguments stay off: precision, checkpointing and sharding are the plan's.
    """

    def __init__(self, applied: AppliedPlan, args: TrainingArguments, **others: Any) -> None:
        applied.check_batches(
            micro_batch=args.per_device_train_batch_size, num_micro_batches=args.gradient_accumulation_steps
        )
        self.applied = applied
        super().__init__(applied.model, args, **others)

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """The plan has put everything where it belongs, some units on the host maybe."""

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """The groups and options of the arguments, stepped and stored as the plan says.

        accelerate is told before to leave the model as it is.
        """
        self.accelerator.prepare_model(self.model, device_placement=False, evaluation_mode=True)
        if self.optimizer is None:
            plain = super().create_optimizer(model)
            groups = [
                {key: group[key] for key in group.keys() - {"foreach", "fused"}} for group in plain.param_groups
            ]
            self.optimizer = self.applied.optimizer(type(plain), groups)
            self.applied.watch(self.optimizer)
        return self.optimizer

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        self.applied.set_is_last_micro_batch(self.accelerator.sync_gradients)
        return super().training_step(model, *args, **kwargs)

    def _clip_grad_norm(self, model: nn.Module) -> Tensor:
        return self.applied.clip_grad_norm(self.args.max_grad_norm)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Every rank writes its shards, under the names of the model; no rank ever holds all of it."""
        if not _internal_call:
            save_checkpoint(Path(output_dir or self.args.output_dir) / "weights", self.applied.model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Of a checkpoint to go on from; weights and optimizer together, in shards."""
        save_checkpoint(Path(output_dir) / "state", self.applied.model, [unwrapped(self.optimizer)])
        if self.args.should_save:
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / "scheduler.pt")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Weights come with the optimizer, once there is one."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            load_checkpoint(Path(checkpoint) / "state", self.applied.model, [unwrapped(self.optimizer)])
            self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / "scheduler.pt"))


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Without what accelerate has put around it."""
    return getattr(optimizer, "optimizer", optimizer)


class Losses(TrainerCallback):
    """Prints the loss of each step, on rank 0."""

    def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, float], **___: Any) -> None:
        if "loss" in logs and state.is_world_process_zero:
            print(f"step {state.global_step - 1} loss {float(logs['loss']):.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small Llama with transformers.Trainer.")
    parser.add_argument("plan", nargs="?", help="plan file; without one every rank has the whole model")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even where there is an accelerator")
    parser.add_argument("--folder", help="folder for checkpoints, one after every second step")
    parser.add_argument("--resume", help="checkpoint to go on from")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)
    if arguments.cpu:
        leave()


def train(arguments: argparse.Namespace, folder: str) -> None:
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    args = TrainingArguments(
        folder,
        use_cpu=arguments.cpu,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GLOBAL_BATCH // (MICRO_BATCH * num_ranks),
        max_steps=NUM_STEPS,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        optim="adamw_torch",
        save_strategy="steps" if arguments.folder else "no",
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    )
    data = [{"input_ids": row, "labels": row} for row in random_tokens(GLOBAL_BATCH)]
    if arguments.plan is None:
        trainer = Trainer(build_model(), args, train_dataset=data, callbacks=[Losses()])
    else:
        device = args.device  # the first look at it starts the process group
        plan = share_plan(lambda: load_plan(arguments.plan))
        applied = apply_plan(build_model(), plan, device_type=device.type)
        trainer = PlannedTrainer(applied, args, train_dataset=data, callbacks=[Losses()])
    trainer.train(resume_from_checkpoint=arguments.resume)


if __name__ == "__main__":
    main()

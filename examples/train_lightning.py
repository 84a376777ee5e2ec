r"""Train a small Llama with Lightning, sharded as a plan says. Needs torch, transformers and lightning.

    shardwright describe examples.train_llama:build --micro-batch 2 --seq 64 -o model.json
    shardwright plan model.json gloo-2 --micro-batch 2 --seq 64 --global-batch 8 -o plan.json
    torchrun --nproc-per-node 2 examples/train_lightning.py plan.json --cpu

Without a plan Lightning takes DistributedDataParallel; the losses are the same:

    torchrun --nproc-per-node 2 examples/train_lightning.py --cpu
"""

import argparse
import logging
import os
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader
from train_llama import NUM_STEPS, build_model, leave, random_tokens

from runtime_client.agreement import share_plan
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.client import load_plan

GLOBAL_BATCH = 8
MICRO_BATCH = 2
MAX_NORM = 1.0


class Llama(lightning.LightningModule):
    """The model and its loss; nothing in it knows of plans."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()

    def training_step(self, tokens: Tensor, _: int) -> Tensor:
        logits = self.model(input_ids=tokens).logits[:, :-1].float()
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def on_train_epoch_end(self) -> None:
        loss = self.trainer.callback_metrics["loss"]
        self.print(f"step {self.current_epoch} loss {loss.item():.6f}", flush=True)


class PlannedLlama(Llama):
    """The same, sharded by a plan in the hook that Lightning has for it; for `PlannedStrategy`."""

    applied: AppliedPlan | None = None

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def configure_model(self) -> None:
        """Lightning may call it again, when it evaluates or predicts."""
        if self.applied is not None:
            return
        plan = share_plan(lambda: load_plan(self.path))
        self.applied = apply_plan(self.model, plan, device_type=self.device.type)
        self.applied.check_batches(micro_batch=MICRO_BATCH, num_micro_batches=self.trainer.accumulate_grad_batches)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Lightning asks for it after `configure_model`."""
        optimizer = self.applied.optimizer(torch.optim.AdamW, lr=1e-3)
        self.applied.watch(optimizer)
        return optimizer

    def on_train_batch_start(self, _: Tensor, index: int) -> None:
        steps = (index + 1) % self.trainer.accumulate_grad_batches == 0 or self.trainer.is_last_batch
        self.applied.set_is_last_micro_batch(steps)

    def configure_gradient_clipping(self, _: Any, gradient_clip_val: float | None = None, **__: Any) -> None:
        if gradient_clip_val:
            self.applied.clip_grad_norm(gradient_clip_val)


class PlannedStrategy(ModelParallelStrategy):
    """A strategy that leaves everything where the plan has put it, some units on the host maybe."""

    def model_to_device(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small Llama with Lightning.")
    parser.add_argument("plan", nargs="?", help="plan file; without one every rank has the whole model")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even where there is an accelerator")
    arguments = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

    planned = arguments.plan is not None
    num_ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = lightning.Trainer(
        accelerator="cpu" if arguments.cpu else "auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=PlannedStrategy(data_parallel_size=num_ranks, tensor_parallel_size=1) if planned else "auto",
        accumulate_grad_batches=GLOBAL_BATCH // (MICRO_BATCH * num_ranks),
        gradient_clip_val=MAX_NORM,
        max_epochs=NUM_STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        PlannedLlama(arguments.plan) if planned else Llama(), DataLoader(random_tokens(GLOBAL_BATCH), MICRO_BATCH)
    )
    if arguments.cpu:
        leave()


if __name__ == "__main__":
    main()

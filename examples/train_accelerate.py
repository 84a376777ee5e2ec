r"""Train a small Llama in a loop of `accelerate`, sharded as a plan says. Needs torch, transformers and accelerate.

    shardwright describe examples.train_llama:build --micro-batch 2 --seq 64 -o model.json
    shardwright plan model.json gloo-2 --micro-batch 2 --seq 64 --global-batch 8 -o plan.json
    accelerate launch --num-processes 2 --cpu examples/train_accelerate.py plan.json --cpu

(or `torchrun --nproc-per-node 2` in place of `accelerate launch ..`). Without a plan accelerate prepares the model
by itself, by DistributedDataParallel; the losses are the same:

    torchrun --nproc-per-node 2 examples/train_accelerate.py --cpu
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader
from train_llama import NUM_STEPS, build_model, leave, random_tokens

from runtime_client.agreement import share_plan
from runtime_client.apply import AppliedPlan, apply_plan
from runtime_client.client import load_plan

GLOBAL_BATCH = 8
MICRO_BATCH = 2
MAX_NORM = 1.0


def prepare_planned(accelerator: Accelerator, path: str) -> tuple[AppliedPlan, nn.Module, torch.optim.Optimizer]:
    """The model as the plan says, and an optimizer of it.

    `prepare_model` is asked for mixed precision and compilation alone (`evaluation_mode`), or it would wrap the
    sharded model in DistributedDataParallel; the Accelerator has neither an FSDP plugin nor `mixed_precision`.
    """
    applied = apply_plan(build_model(), share_plan(lambda: load_plan(path)), device_type=accelerator.device.type)
    applied.check_batches(micro_batch=MICRO_BATCH, num_micro_batches=accelerator.gradient_accumulation_steps)
    optimizer = applied.optimizer(torch.optim.AdamW, lr=1e-3)
    applied.watch(optimizer)
    model = accelerator.prepare_model(applied.model, device_placement=False, evaluation_mode=True)
    return applied, model, accelerator.prepare_optimizer(optimizer, device_placement=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small Llama in a loop of accelerate.")
    parser.add_argument("plan", nargs="?", help="plan file; without one accelerate prepares the model by itself")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even where there is an accelerator")
    arguments = parser.parse_args()

    accelerator = Accelerator(cpu=arguments.cpu)
    accelerator.gradient_accumulation_steps = GLOBAL_BATCH // (MICRO_BATCH * accelerator.num_processes)
    loader = accelerator.prepare(DataLoader(random_tokens(GLOBAL_BATCH), MICRO_BATCH))
    applied = None
    if arguments.plan is not None:
        applied, model, optimizer = prepare_planned(accelerator, arguments.plan)
    else:
        model = build_model()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    for step in range(NUM_STEPS):
        total = torch.zeros((), device=accelerator.device)
        for tokens in loader:
            with accelerator.accumulate(model):
                if applied is not None:
                    applied.set_is_last_micro_batch(accelerator.sync_gradients)
                logits = model(input_ids=tokens).logits[:, :-1].float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                accelerator.backward(loss)
                total += loss.detach() / accelerator.gradient_accumulation_steps
                if accelerator.sync_gradients and applied is not None:
                    applied.clip_grad_norm(MAX_NORM)
                elif accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.reduce(total, "mean")
        accelerator.print(f"step {step} loss {mean.item():.6f}", flush=True)
    accelerator.end_training()
    if arguments.cpu:
        leave()


if __name__ == "__main__":
    main()

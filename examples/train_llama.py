r"""Train a small Llama for five steps, sharded as a plan says. Needs torch and transformers.

Describe the model, plan it for as many ranks as you will start, and train, on two processes of a CPU here:

    shardwright describe examples.train_llama:build --micro-batch 2 --seq 64 -o model.json
    shardwright plan model.json gloo-2 --micro-batch 2 --seq 64 --global-batch 8 \
        -o plan.json --save-request request.json
    torchrun --nproc-per-node 2 examples/train_llama.py plan.json --cpu

or ask a running service (`shardwright serve`) for the plan:

    torchrun --nproc-per-node 2 examples/train_llama.py --url http://127.0.0.1:8000 --request request.json --cpu
"""

import argparse
import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from planner.schema import Plan, PlanRequest
from runtime_client.agreement import share_plan
from runtime_client.apply import apply_plan
from runtime_client.client import PlanClient, load_plan
from runtime_client.describe import TrainingExample, token_inputs

NUM_STEPS = 5
VOCABULARY = 512
SEQUENCE = 64


def build_model() -> nn.Module:
    """A Llama of half a million parameters with random weights, the same on every rank."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def build() -> TrainingExample:
    """What `shardwright describe` traces: the model and its inputs; the loss is cross entropy."""
    return TrainingExample(model=build_model(), inputs=token_inputs)


def random_tokens(count: int, seed: int = 1) -> torch.Tensor:
    """So many sequences to train on, the same in every process with the same seed."""
    return torch.randint(0, VOCABULARY, (count, SEQUENCE), generator=torch.Generator().manual_seed(seed))


def get_plan(arguments: argparse.Namespace) -> Plan:
    """Rank 0 reads the file or asks the service, and hands the plan to the others."""
    return share_plan(lambda: ask(arguments))


def ask(arguments: argparse.Namespace) -> Plan:
    """A plan from a file, or from a service (which may be away: then the last good plan)."""
    if arguments.url is None:
        return load_plan(arguments.plan)
    with open(arguments.request, encoding="utf-8") as file:
        request = PlanRequest.from_json(file.read(), source=arguments.request)
    client = PlanClient(arguments.url, api_key=os.environ.get("SHARDWRIGHT_API_KEY"), deadline_s=60)
    return client.plan(request).plan


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small Llama, sharded as a plan says.")
    parser.add_argument("plan", nargs="?", help="plan file")
    parser.add_argument("--url", help="plan service to ask instead")
    parser.add_argument("--request", help="request file for the service")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU even where there is an accelerator")
    arguments = parser.parse_args()
    if (arguments.plan is None) == (arguments.url is None) or (arguments.url and not arguments.request):
        parser.error("give a plan file, or --url with --request")

    device = torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None and not arguments.cpu:
        device = torch.device(accelerator.type, int(os.environ["LOCAL_RANK"]))
        torch.accelerator.set_device_index(device.index)
    dist.init_process_group()

    applied = apply_plan(build_model(), get_plan(arguments), device_type=device.type)
    model, decisions = applied.model, applied.decisions
    optimizer = applied.optimizer(torch.optim.AdamW, lr=1e-3)

    tokens = random_tokens(decisions.num_micro_batches * decisions.micro_batch, seed=1 + dist.get_rank())
    batches = tokens.to(device).split(decisions.micro_batch)
    for step in range(NUM_STEPS):
        total = torch.zeros((), device=device)
        with applied.checked_step() if step == 0 else nullcontext() as report:
            for index, tokens in enumerate(batches):
                applied.begin_micro_batch(index)
                logits = model(input_ids=tokens).logits[:, :-1].float()
                loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                (loss / decisions.num_micro_batches).backward()
                total += loss.detach() / decisions.num_micro_batches
            optimizer.step()
            applied.after_optimizer_step()
        optimizer.zero_grad()
        if report is not None and dist.get_rank() == 0:
            print(report.line, *report.warnings, sep="\n", flush=True)
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"step {step} loss {total.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()
    if device.type == "cpu":
        leave()


def leave() -> None:
    """End the process at once.

    Threads of gloo may hold the last tensors a little longer (torch 2.13); one that lets go of them while Python
    finalises is unwound, and the process aborts after all its work is done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

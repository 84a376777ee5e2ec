"""One rank: clip the gradients of several meshes, and those of an unsharded model; prints both as JSON."""

import json
import math
from contextlib import suppress

import torch
import torch.distributed as dist

from runtime_client.apply import apply_decisions
from runtime_client.apply.meshes import build_mesh
from tests.real.cases import planned
from tests.real.llama import Llama, seeded_llama

MAX_NORM = 1e-3


def backward(model: Llama) -> None:
    tokens = torch.arange(24).view(2, 12) % 17
    model(tokens).float().square().mean().backward()


def main() -> None:
    dist.init_process_group("gloo")
    answers = {}
    for norm_type in (2.0, 1.0, math.inf):
        whole = seeded_llama()
        backward(whole)
        expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), MAX_NORM, norm_type)
        model = seeded_llama()
        decisions = planned("unit_meshes", 4)
        applied = apply_decisions(model, decisions, build_mesh(decisions.mesh, "cpu"))
        for index in range(2):
            applied.begin_micro_batch(index)
            backward(model)
        for parameter in model.parameters():
            parameter.grad /= 2
        refused = "not refused"
        with suppress(RuntimeError, ValueError, NotImplementedError):
            refused = ""
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM, norm_type)
            refused = "taken"
        norm = applied.clip_grad_norm(MAX_NORM, norm_type=norm_type)
        gradients = zip(model.parameters(), whole.parameters(), strict=True)
        answers[str(norm_type)] = {
            "torch": refused,
            "norm": norm.item(),
            "expected": expected.item(),
            "error": max((mine.grad.full_tensor() - other.grad).abs().max().item() for mine, other in gradients),
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()

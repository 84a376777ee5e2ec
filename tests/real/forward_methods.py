"""One rank: enter a sharded model by methods other than forward; print what differs from the unsharded one."""

import json

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from planner.schema import Decisions
from runtime_client.apply import apply_plan
from runtime_client.fingerprint import fingerprint
from tests.real.weights import tied_transformer
from tests.runtime_client.plans import body, checkpointed, decisions, unit
from tests.runtime_client.ragged.layouts import one, with_layouts


class Tower(nn.Module):
    """Has parameters of its own, blocks, and a method."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(1, 2, 6))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def encode(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x).sum(dim=0, keepdim=True)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower()
        self.head = nn.Linear(6, 3)

    def embed(self, x: Tensor) -> Tensor:
        return self.head(self.tower.encode(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tower(x))


ROOT = unit("")
BLOCKS = (unit("tower.layers.0"), unit("tower.layers.1"))
CASES = {
    "unit": (*BLOCKS, unit("tower"), ROOT),
    "no unit": (*BLOCKS, ROOT),
    "ragged": (*BLOCKS, ROOT),
    "checkpointed": (unit("tower"), ROOT),
}


def build() -> Model:
    torch.manual_seed(0)
    return Model()


def planned(case: str, model: Model) -> Decisions:
    activations = checkpointed("tower") if case == "checkpointed" else ()
    made = decisions(CASES[case], shard=dist.get_world_size(), activations=activations, forward_methods=("embed",))
    return with_layouts(model, made, atom=one) if case == "ragged" else made


def outcomes(model: Model) -> list[Tensor]:
    """The method of the tower comes first, before any forward; then everything is differentiated."""
    x = torch.linspace(-1, 1, 12).view(2, 6)
    results = [model.tower.encode(x), model.embed(x), model(x)]
    sum(result.square().sum() for result in results).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    with torch.no_grad():
        results += [model.tower.encode(x), model(x)]
    return [*results, *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients)]


def generates_the_same() -> list[bool]:
    """`generate` of transformers, entered before any forward, and training afterwards."""
    model, right = tied_transformer(), tied_transformer()
    units = (unit("model.layers.0"), unit("model.layers.1"), ROOT)
    plan = body(
        decisions(units, shard=dist.get_world_size(), forward_methods=("generate",)), fingerprint=fingerprint(model)
    )
    apply_plan(model, plan, device_type="cpu")
    tokens = torch.arange(12).view(2, 6)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    generated = torch.equal(model.generate(tokens, **options), right.generate(tokens, **options))
    losses = [one(input_ids=tokens, labels=tokens).loss for one in (model, right)]
    losses[0].backward()
    return [generated, torch.equal(*losses)]


def main() -> None:
    dist.init_process_group("gloo")
    right = outcomes(build())
    for case in CASES:
        model = build()
        plan = body(planned(case, model), fingerprint=fingerprint(model))
        applied = apply_plan(model, plan, device_type="cpu", forward_methods=("tower.encode",))
        found = outcomes(model)
        equal = [torch.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in zip(found, right, strict=True)]
        methods = list(applied.decisions.forward_methods)
        print(json.dumps({"case": case, "equal": equal, "methods": methods}), flush=True)
    print(json.dumps({"case": "generate", "equal": generates_the_same()}), flush=True)
    model = build()
    mesh_plan = body(decisions(CASES["no unit"], shard=dist.get_world_size()), fingerprint=fingerprint(model))
    apply_plan(model, mesh_plan, mesh=init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",)))
    try:
        model.tower.encode(torch.ones(2, 6))
    except RuntimeError as error:
        print(json.dumps({"case": "unregistered", "error": str(error)}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()

"""Everything `apply_plan` refuses, and that it refuses before it touches the model."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import distribute_tensor

from planner.schema import Decisions, MatrixOwner, MeshPlan, Plan, PlanBody, Requirements
from runtime_client import errors
from runtime_client.apply import apply_plan, plan_checks
from runtime_client.fingerprint import fingerprint
from runtime_client.optimizers import Muon
from runtime_client.optimizers.errors import CutParameter, UnknownOwner
from tests.real.llama import Llama, seeded_llama
from tests.runtime_client.plans import NO_HASH, body, checkpointed, decisions, unit

ROOT = unit("")
LAYERS = tuple(unit(f"layers.{index}") for index in range(2))


def small() -> Llama:
    return seeded_llama(num_blocks=2, width=8, num_heads=2, hidden=11, vocabulary=13)


def plan_for(model: nn.Module, made: Decisions | None = None, **fields: object) -> PlanBody:
    made = made or decisions((*LAYERS, ROOT), shard=4)
    return body(made, **{"fingerprint": fingerprint(model), **fields})


def look(model: nn.Module) -> list[object]:
    return [(name, type(module), id(module)) for name, module in model.named_modules()] + [
        (name, id(parameter), parameter._version) for name, parameter in model.named_parameters()
    ]


def refused(error: type[errors.ApplyError], match: str, model: nn.Module, plan: Plan | PlanBody, **more) -> None:
    before = look(model)
    with pytest.raises(error, match=match):
        apply_plan(model, plan, device_type="cpu", **more)
    assert look(model) == before


def test_plan_that_was_changed() -> None:
    model = small()
    plan = Plan.of(plan_for(model))
    changed = plan.model_copy(update={"body": plan.body.model_copy(update={"world_size": 8})})
    refused(errors.PlanIdentityMismatch, "the plan was changed after it was made", model, changed)


def test_infeasible_plan() -> None:
    why = {"reason": "a block needs 90 GB", "binding": "activations", "advice": ["Use 16 ranks."]}
    plan = body(None, world_size=4, infeasibility=why)
    refused(errors.InfeasiblePlan, r"infeasible: a block needs 90 GB\. Use 16 ranks\.", small(), plan)


@pytest.mark.parametrize("specifier", [">=99", "<2", "==1.13.*", "~=2.0.1"])
def test_other_torch(specifier: str) -> None:
    model = small()
    plan = plan_for(model, requires=Requirements(torch=specifier))
    refused(errors.TorchVersionMismatch, "requires.torch", model, plan)


def test_feature_that_this_client_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tuple(feature for feature in plan_checks.CLIENT_FEATURES if feature != "ragged_layout")
    monkeypatch.setattr(plan_checks, "CLIENT_FEATURES", kept)
    model = small()
    plan = plan_for(model, requires=Requirements.model_validate({"client_features": ["ragged_layout", "prefetch"]}))
    refused(errors.MissingClientFeature, "cannot apply ragged_layout.*plan again with client_features", model, plan)


PAIRS = MeshPlan(replicate=2, shard=2)
FULL = {"module": "layers.0", "policy": "full"}


@pytest.mark.parametrize(
    ("made", "match"),
    [
        (decisions((unit("", parameter_tier="nvme"),), shard=4), r"units\[0\]\.parameter_tier: offload to nvme"),
        (
            decisions((unit("layers.0", optimizer_tier="host"), unit("", optimizer_tier="nvme")), shard=4),
            r"optimizer_tier: .* in part on the host, in part on nvme",
        ),
        (decisions((unit("", reshard_after_forward=3),), shard=4), "not a divisor of the shard degree 4"),
        (decisions((unit("", reshard_after_forward=4),), shard=4), "between 1 and 4"),
        (
            decisions((unit("layers.0", mesh=MeshPlan(shard=2)), ROOT), shard=4),
            r"units\[0\]\.mesh covers 2 ranks, but decisions\.mesh covers 4",
        ),
        (
            decisions((unit("layers.0", mesh=PAIRS, reshard_after_forward=2), ROOT), shard=4),
            "not a divisor of the shard degree 2",
        ),
        (decisions((unit("", reshard_after_forward=1),), shard=4), "Use true, false or such a divisor"),
        (
            decisions((ROOT,), shard=4, activations=({"module": "layers.0", "policy": "selective"},)),
            r"activations\[0\]\.saved_ops: selective checkpointing of 'layers\.0' keeps no outputs",
        ),
        (
            decisions((ROOT,), shard=4, activations=(FULL | {"saved_ops": ("aten.mm.default",)},)),
            r"activations\[0\]\.saved_ops: policy full of 'layers\.0' keeps the outputs of no operations",
        ),
    ],
)
def test_decisions_that_cannot_be_carried_out(made: Decisions, match: str) -> None:
    model = small()
    refused(errors.UnsupportedPlan, match, model, plan_for(model, made))


def test_optimizer_state_away_from_its_parameters() -> None:
    """That of parameters on the host; the other way round is a tier of its own."""
    model = small()
    made = decisions((unit("", parameter_tier="host"),), shard=4)
    match = r"units\[0\]: parameter_tier is host, but optimizer_tier is device.*both tiers"
    refused(errors.OffloadTierMismatch, match, model, plan_for(model, made))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("aten.mmm.default", r"no operation 'aten\.mmm\.default' \(nearest: aten\.b?mm\.default"),
        ("somewhere.else.default", "import the library"),
    ],
)
def test_operation_that_torch_does_not_have(name: str, match: str) -> None:
    model = small()
    activation = {"module": "layers.0", "policy": "selective", "saved_ops": ("aten.mm.default", name)}
    made = decisions((ROOT,), shard=4, activations=(activation,))
    refused(errors.UnknownSavedOperation, r"activations\[0\]\.saved_ops: .*" + match, model, plan_for(model, made))


@pytest.mark.parametrize("field", ["param_dtype", "reduce_dtype", "output_dtype"])
def test_element_type_that_fsdp2_cannot_compute_in(field: str) -> None:
    model = small()
    made = decisions((ROOT,), shard=4, **{field: "float8_e4m3fn"})
    refused(errors.UnsupportedPrecision, f"decisions.{field} is float8_e4m3fn", model, plan_for(model, made))


@pytest.mark.parametrize(
    ("entry", "error", "match"),
    [
        (("head.wait", 1), errors.UnknownParameter, r"no parameter 'head\.wait' \(nearest: head\.weight"),
        (("norm.weight", 1), errors.InvalidShardDim, r"has shape \(8,\) and no dimension 1"),
        (
            ("layers.0.feed_forward.down.weight", 1),
            errors.UnevenShardDim,
            r"shape \(8, 11\), does not divide evenly",
        ),
    ],
)
def test_dimension_that_cannot_be_sharded(world: int, entry: tuple, error: type, match: str) -> None:
    model = small()
    dims = ({"parameter": "head.weight", "dim": 1}, {"parameter": entry[0], "dim": entry[1]})
    made = decisions((*LAYERS, ROOT), shard=4, shard_dims=dims)
    refused(error, r"shard_dims\[1\].*" + match, model, plan_for(model, made))


def test_parameter_that_is_listed_twice_under_two_names(world: int) -> None:
    model = small()
    tie(model)
    dims = tuple({"parameter": f"{name}.weight", "dim": 1} for name in ("embedding", "head"))
    made = decisions((*LAYERS, ROOT), shard=4, shard_dims=dims)
    match = r"shard_dims\[1\]: 'head\.weight' is the parameter of decisions\.shard_dims\[0\] already"
    refused(errors.InvalidShardDim, match, model, plan_for(model, made))


def test_partial_resharding_of_another_dimension(world: int) -> None:
    model = small()
    made = decisions(
        (unit("head", reshard_after_forward=2), ROOT), shard=4, shard_dims=({"parameter": "head.weight", "dim": 1},)
    )
    match = r"units\[0\]\.reshard_after_forward is 2, but 'head\.weight'.*cannot gather it again"
    refused(errors.PartialReshardOfShardDim, match, model, plan_for(model, made))


def test_no_process_group() -> None:
    model = small()
    refused(errors.ProcessGroupMissing, "Start the script with torchrun", model, plan_for(model))


def test_other_number_of_ranks(world: int) -> None:
    model = small()
    plan = plan_for(model, decisions((ROOT,), shard=8))
    refused(errors.WorldSizeMismatch, f"this job has {world} ranks. Start 8 ranks", model, plan)
    contradiction = plan_for(model, decisions((ROOT,), shard=2), world_size=4)
    refused(errors.WorldSizeMismatch, "the plan contradicts itself", model, contradiction)


def test_other_mesh(world: int) -> None:
    model = small()
    named = init_device_mesh("cpu", (world,), mesh_dim_names=("shard",))
    hybrid = plan_for(model, decisions((ROOT,), shard=2, replicate=2))
    refused(errors.MeshMismatch, r"decisions\.mesh is \(2, 2\).*\(4,\)", model, hybrid, mesh=named)
    unnamed = init_device_mesh("cpu", (2, 2))
    refused(errors.MeshMismatch, "no mesh_dim_names", model, hybrid, mesh=unnamed)


def test_sharded_before(world: int) -> None:
    model = small()
    plan = plan_for(model)
    apply_plan(model, plan, device_type="cpu")
    refused(errors.AlreadySharded, "went through fully_shard before", model, plan)


def test_inner_module_sharded_before(world: int) -> None:
    model = small()
    plan = plan_for(model)
    fully_shard(model.layers[1], mesh=init_device_mesh("cpu", (world,)))
    refused(errors.AlreadySharded, r"module 'layers\.1'", model, plan)


def test_dtensor_parameters(world: int) -> None:
    model = small()
    plan = plan_for(model)
    mesh = init_device_mesh("cpu", (world,))
    model.head.weight = nn.Parameter(distribute_tensor(model.head.weight.detach(), mesh))
    refused(errors.AlreadySharded, r"parameter 'head\.weight' is a DTensor", model, plan)


def rename(model: Llama) -> None:
    model.output = model.head
    del model.head


def resize(model: Llama) -> None:
    model.head = nn.Linear(8, 14, bias=False)


def freeze(model: Llama) -> None:
    model.norm.weight.requires_grad_(False)


def retype(model: Llama) -> None:
    model.to(torch.bfloat16)


def tie(model: Llama) -> None:
    model.head.weight = model.embedding.weight


def reclass(model: Llama) -> None:
    model.layers[0].feed_forward_norm = nn.LayerNorm(8, bias=False)


@pytest.mark.parametrize("change", [rename, resize, freeze, retype, tie, reclass])
def test_other_model(world: int, change: Callable[[Llama], None]) -> None:
    model = small()
    plan = plan_for(model)
    change(model)
    refused(errors.FingerprintMismatch, "Describe this model and plan again", model, plan)


def test_module_that_does_not_exist(world: int) -> None:
    model = small()
    for made, match in (
        (decisions((unit("layers.7"), ROOT), shard=4), r"units\[0\]\.modules\[0\].*nearest: layers\."),
        (
            decisions((unit("norm", "lm_head"), ROOT), shard=4),
            r"units\[0\]\.modules\[1\]: the model has no module 'lm_head'",
        ),
        (
            decisions((ROOT,), shard=4, activations=checkpointed("blocks.0")),
            r"activations\[0\]\.module: the model has no module 'blocks\.0'",
        ),
    ):
        refused(errors.UnknownModule, match, model, plan_for(model, made))


def test_unit_that_never_runs(world: int) -> None:
    model = small()
    made = decisions((unit("layers"), ROOT), shard=4)
    match = r"units\[0\]\.modules\[0\]: 'layers' is a ModuleList without a forward"
    refused(errors.UnitWithoutForward, match, model, plan_for(model, made))


@pytest.mark.parametrize("container", [nn.ModuleDict({"a": nn.Linear(3, 3)}), nn.ParameterList([torch.ones(3)])])
def test_other_containers_never_run(world: int, container: nn.Module) -> None:
    model = nn.Module()
    model.forward = lambda x: x
    model.parts = container
    made = decisions((unit("parts"), ROOT), shard=4)
    refused(errors.UnitWithoutForward, "without a forward", model, plan_for(model, made))


@pytest.mark.parametrize(
    "units",
    [
        (unit("layers.0"), unit("layers.0"), ROOT),
        (unit("norm", "norm"), ROOT),
        (unit("norm", "head"), unit("head"), ROOT),
        (ROOT, ROOT),
        (unit("layers.0", "layers.0.attention"), ROOT),
    ],
)
def test_module_listed_twice(world: int, units: tuple) -> None:
    model = small()
    refused(
        errors.UnitListedTwice, "List each module once|Drop it", model, plan_for(model, decisions(units, shard=4))
    )


def test_one_module_under_two_names(world: int) -> None:
    model = small()
    model.layers[1] = model.layers[0]
    refused(errors.UnitListedTwice, "List each module once", model, plan_for(model))


@pytest.mark.parametrize("units", [LAYERS, (ROOT, *LAYERS), (*LAYERS, unit("", "norm"))])
def test_root_must_be_last_and_alone(world: int, units: tuple) -> None:
    model = small()
    error = errors.UnitListedTwice if "norm" in units[-1].modules else errors.RootNotLast
    refused(error, "root module alone|inside ''", model, plan_for(model, decisions(units, shard=4)))


def test_inner_unit_after_outer(world: int) -> None:
    model = small()
    made = decisions((unit("layers.0"), unit("layers.0.attention"), ROOT), shard=4)
    match = r"units\[1\]: 'layers\.0\.attention' lies inside decisions\.units\[0\]"
    refused(errors.UnitOrder, match, model, plan_for(model, made))


def test_tied_parameters_over_two_units(world: int) -> None:
    model = small()
    tie(model)
    made = decisions((unit("embedding"), *LAYERS, ROOT), shard=4)
    match = r"'head\.weight' is tied to 'embedding\.weight' of decisions\.units\[0\]"
    refused(errors.TiedParameterSplit, match, model, plan_for(model, made))


def test_storage_shared_by_two_parameter_objects(world: int) -> None:
    model = small()
    model.head.weight = nn.Parameter(model.embedding.weight.detach())
    refused(errors.TiedParameterSplit, "Assign the same object to both", model, plan_for(model))


def test_two_storage_types_in_one_unit(world: int) -> None:
    model = small()
    model.layers[1].attention.to(torch.bfloat16)
    match = (
        r"units\[1\]: trainable parameters of \['layers\.1'\] are stored as torch\.float32 \(layers\.1\..*bfloat16"
    )
    refused(errors.MixedStorageDTypes, match, model, plan_for(model))


def test_scalar_parameter(world: int) -> None:
    model = small()
    model.layers[0].scale = nn.Parameter(torch.tensor(1.0))
    refused(errors.ScalarParameter, r"'layers\.0\.scale'.*Give it the shape \(1,\)", model, plan_for(model))


def test_parameter_that_is_not_contiguous(world: int) -> None:
    model = small()
    model.head.weight = nn.Parameter(torch.randn(8, 13).t())
    refused(errors.NonContiguousParameter, r"'head\.weight' has strides \(1, 13\)", model, plan_for(model))


@pytest.mark.parametrize(
    ("units", "match"),
    [
        ((unit("layers.0", forward_prefetch=("layers",)), ROOT), "'layers' is not the first module of any unit"),
        ((unit("norm", "head"), unit("layers.0", forward_prefetch=("head",)), ROOT), "is not the first module"),
        ((unit("layers.0", forward_prefetch=("layers.0",)), ROOT), r"forward_prefetch\[0\].*is gathered by then"),
        ((unit("layers.0", backward_prefetch=("",)), ROOT), r"backward_prefetch\[0\].*is gathered by then"),
        (
            (unit("layers.0.attention", forward_prefetch=("layers.0",)), unit("layers.0"), ROOT),
            r"forward_prefetch\[0\]: 'layers\.0' is gathered by then",
        ),
        (
            (unit("layers.0.attention", backward_prefetch=("layers.0",)), unit("layers.0"), ROOT),
            r"backward_prefetch\[0\]: 'layers\.0' is gathered by then",
        ),
        (
            (
                unit("layers.0", forward_prefetch=("layers.1",)),
                unit("layers.1", forward_prefetch=("layers.0",)),
                ROOT,
            ),
            "contradict each other",
        ),
        (
            (
                unit("layers.0", forward_prefetch=("layers.1",)),
                unit("layers.1"),
                unit("norm", forward_prefetch=("layers.0",), backward_prefetch=("layers.1",)),
                ROOT,
            ),
            "'layers.0' -> 'layers.1'|'norm' -> 'layers.0'|'layers.1' -> 'norm'",
        ),
        (
            (
                unit("layers.0", backward_prefetch=("layers.1",)),
                unit("layers.1", backward_prefetch=("layers.0",)),
                ROOT,
            ),
            "contradict each other",
        ),
    ],
)
def test_prefetch_lists_that_make_no_sense(world: int, units: tuple, match: str) -> None:
    model = small()
    refused(errors.PrefetchOrder, match, model, plan_for(model, decisions(units, shard=4)))


def test_units_may_prefetch_those_inside_them(world: int) -> None:
    model = small()
    inner = unit("layers.0.attention")
    outer = unit("layers.0", forward_prefetch=inner.modules, backward_prefetch=inner.modules)
    apply_plan(model, plan_for(model, decisions((inner, outer, ROOT), shard=4)), device_type="cpu")


def test_checkpointing_that_the_plan_does_not_know_of(world: int) -> None:
    model = small()
    plan = plan_for(model)
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    refused(errors.ConflictingCheckpointing, r"'layers\.0' is wrapped in a checkpoint", model, plan)


@pytest.mark.parametrize("policy", ["full", "selective"])
def test_checkpointing_of_another_kind(world: int, policy: str) -> None:
    model = small()
    saved = ("aten.mm.default",) if policy == "selective" else ()
    activation = {"module": "layers.0", "policy": policy, "saved_ops": saved}
    plan = plan_for(model, decisions((*LAYERS, ROOT), shard=4, activations=(activation,)))
    options = {"context_fn": lambda: (nullcontext(), nullcontext())} if policy == "full" else {}
    model.layers[0] = checkpoint_wrapper(model.layers[0], **options)
    match = "wrapped in a selective checkpoint" if options else "has policy selective for it"
    refused(errors.ConflictingCheckpointing, match, model, plan)


def test_module_that_is_checkpointed_twice(world: int) -> None:
    model = small()
    made = decisions((ROOT,), shard=4, activations=checkpointed("layers.0", "layers.0"))
    refused(errors.ConflictingCheckpointing, r"activations\[1\].*listed twice", model, plan_for(model, made))


def test_reentrant_checkpointing(world: int) -> None:
    model = small()
    plan = plan_for(model, decisions((*LAYERS, ROOT), shard=4, activations=checkpointed("layers.0")))
    model.layers[0] = checkpoint_wrapper(model.layers[0], checkpoint_impl=CheckpointImpl.REENTRANT)
    refused(errors.ConflictingCheckpointing, "reentrant variant", model, plan)


def test_checkpointing_built_into_the_model(world: int) -> None:
    model = small()
    model.layers[0].gradient_checkpointing = True
    refused(errors.ConflictingCheckpointing, r"gradient_checkpointing_disable\(\)", model, plan_for(model))


@pytest.mark.parametrize(("path", "match"), [("", "as a whole"), ("layers", "has no forward")])
def test_modules_that_cannot_be_checkpointed(world: int, path: str, match: str) -> None:
    model = small()
    made = decisions((ROOT,), shard=4, activations=checkpointed(path))
    refused(errors.UnsupportedPlan, match, model, plan_for(model, made))


def test_optimizer_built_too_early(world: int) -> None:
    model = small()
    early = torch.optim.AdamW(model.parameters())
    applied = apply_plan(model, plan_for(model), device_type="cpu")
    with pytest.raises(errors.OptimizerBuiltTooEarly, match="build the optimizer after apply_plan"):
        applied.check_optimizer(early)
    applied.check_optimizer(torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize("chosen", ["foreach", "fused", "for_loop"])
def test_an_optimizer_that_steps_otherwise_than_decided(world: int, chosen: str) -> None:
    model = small()
    made = decisions((ROOT,), shard=4, optimizer_implementation=chosen)
    applied = apply_plan(model, plan_for(model, made), device_type="cpu")
    applied.check_optimizer(torch.optim.AdamW(model.parameters(), **applied.optimizer_options))
    applied.check_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    other = {"foreach": chosen == "for_loop", "fused": chosen == "foreach"}
    with pytest.raises(errors.OptimizerDiffersFromPlan, match=rf"param_groups\[0\] steps .* decided '{chosen}'"):
        applied.check_optimizer(torch.optim.AdamW(model.parameters(), **other))


def test_muon_without_the_owners_that_were_decided(world: int) -> None:
    model = small()
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    owners = tuple(MatrixOwner(parameter=name, rank=3 - place % 4) for place, (name, _) in enumerate(matrices))
    made = decisions((ROOT,), shard=4).model_copy(update={"owners": owners})
    applied = apply_plan(model, plan_for(model, made), device_type="cpu")
    matrices = [(name, p) for name, p in model.named_parameters() if p.ndim == 2]
    applied.check_optimizer(Muon(matrices, owners=applied.owners))
    for other in (torch.optim.Muon(matrices), Muon(matrices, owners=applied.owners | {matrices[0][0]: 0})):
        with pytest.raises(errors.OptimizerDiffersFromPlan, match=r"owners=applied\.owners"):
            applied.check_optimizer(other)
    with pytest.raises(UnknownOwner, match=f"rank 4 is to own '{matrices[0][0]}', which is sharded over 4"):
        Muon(matrices, owners={matrices[0][0]: 4})
    with pytest.raises(UnknownOwner, match="named_parameters"):
        Muon([p for _, p in matrices], owners=applied.owners)
    with pytest.raises(CutParameter, match=f"{matrices[0][0]}.*an owner"):
        Muon(matrices)


def test_where_nothing_is_decided_any_optimizer_will_do(world: int) -> None:
    model = small()
    applied = apply_plan(model, plan_for(model), device_type="cpu")
    assert applied.optimizer_options == {}
    applied.check_optimizer(torch.optim.Adam(model.parameters(), fused=True))


def test_fingerprint_can_be_waived_knowingly(world: int) -> None:
    model = small()
    plan = plan_for(model, fingerprint=NO_HASH)
    refused(errors.FingerprintMismatch, "model_fingerprint", model, plan)
    apply_plan(model, plan, device_type="cpu", require_fingerprint=False)
    assert isinstance(model, FSDPModule)


def test_every_refusal_has_its_own_code() -> None:
    def below(error: type) -> list[type]:
        return [error, *(deeper for child in error.__subclasses__() for deeper in below(child))]

    codes = [error.code for error in below(errors.ApplyError) + below(errors.ClientError)]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize(
    ("backends", "device_type", "is_refused"),
    [
        ("cuda:nccl", "cuda", True),
        ("cpu:gloo,cuda:nccl", "cuda", False),
        ("cpu:gloo", "cpu", False),
        ("cuda:nccl,xpu:xccl", "cuda", True),
    ],
)
def test_offload_needs_a_backend_on_the_host(monkeypatch, backends, device_type, is_refused):
    """Only a GPU backend can show the failure: NCCL has no kernels for host memory (`ProcessGroup::getBackend`)."""
    monkeypatch.setattr(plan_checks.dist, "get_backend_config", lambda: backends)
    on_device = decisions((unit("a"), unit("")), shard=2)
    on_host = decisions((unit("a", parameter_tier="host", optimizer_tier="host"), unit("")), shard=2)
    plan_checks.check_host_backend(on_device, device_type)
    with pytest.raises(errors.HostBackendMissing, match="cpu:gloo") if is_refused else nullcontext():
        plan_checks.check_host_backend(on_host, device_type)

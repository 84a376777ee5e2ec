"""The same cases as decisions of a plan."""

from planner.schema import Decisions, UnitPlan
from tests.runtime_client.plans import checkpointed, decisions, unit

LAYERS = tuple(f"layers.{index}" for index in range(4))
ROOT = unit("")
PLAIN = (*map(unit, LAYERS), ROOT)
BFLOAT16 = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


def _keep() -> tuple[UnitPlan, ...]:
    reshard = (True, False, True, False)
    blocks = (unit(path, reshard_after_forward=value) for path, value in zip(LAYERS, reshard, strict=True))
    return (*blocks, unit("", reshard_after_forward=True))


def _prefetch() -> tuple[UnitPlan, ...]:
    blocks = (
        unit(path, forward_prefetch=LAYERS[index + 1 : index + 3], backward_prefetch=LAYERS[:index][-2:][::-1])
        for index, path in enumerate(LAYERS)
    )
    return (*blocks, unit("", forward_prefetch=LAYERS[:2], backward_prefetch=LAYERS[:-3:-1]))


def _groups() -> tuple[UnitPlan, ...]:
    blocks = (unit(path) for layer in LAYERS for path in (f"{layer}.attention", layer))
    return (unit("embedding"), *blocks, unit("norm", "head"), ROOT)


def _everything() -> tuple[UnitPlan, ...]:
    return (
        unit("layers.0", reshard_after_forward=False, forward_prefetch=("layers.1", "layers.2")),
        unit("layers.1", reshard_after_forward=True, forward_prefetch=("layers.2", "layers.3")),
        unit("layers.2", reshard_after_forward=True),
        unit("layers.3", backward_prefetch=("layers.2", "layers.1")),
        unit("norm", "head", reshard_after_forward=False, backward_prefetch=("layers.3",)),
        ROOT,
    )


def planned(case: str, num_ranks: int) -> Decisions:
    """Decisions of a case."""
    n, half = num_ranks, num_ranks // 2
    match case:
        case "default":
            return decisions(PLAIN, shard=n)
        case "keep":
            return decisions(_keep(), shard=n)
        case "hybrid":
            return decisions(PLAIN, shard=half, replicate=2)
        case "unit_meshes":
            everyone = {"mesh": {"shard": n}}
            blocks = (
                unit(path, **(everyone if path in (f"{layer}.feed_forward", "layers.3") else {}))
                for layer in LAYERS
                for path in (f"{layer}.feed_forward", layer)
            )
            sync = {"gradient_sync": "all_reduce_on_last_micro_batch"}
            return decisions((*blocks, ROOT), shard=half, replicate=2, num_micro_batches=2, runtime=sync)
        case "checkpointing":
            return decisions(PLAIN, shard=n, activations=checkpointed("layers.0", "layers.2"))
        case "activation_offload":
            offloaded = ({"module": path, "policy": "offload"} for path in ("layers.1", "layers.3"))
            return decisions(PLAIN, shard=n, activations=(*checkpointed("layers.0", "layers.2"), *offloaded))
        case "prefetch":
            return decisions(_prefetch(), shard=n)
        case "groups":
            return decisions(_groups(), shard=n)
        case "bfloat16":
            return decisions(PLAIN, shard=n, **BFLOAT16)
        case "float32_outputs":
            return decisions(PLAIN, shard=n, output_dtype="float32", **BFLOAT16)
        case "two_micro_batches":
            return decisions(PLAIN, shard=n, num_micro_batches=2)
        case "sync_last_micro_batch":
            sync = {"gradient_sync": "last_micro_batch"}
            return decisions(PLAIN, shard=n, num_micro_batches=2, runtime=sync)
        case "all_reduce_last_micro_batch":
            sync = {"gradient_sync": case.replace("_last_", "_on_last_")}
            return decisions(PLAIN, shard=half, replicate=2, num_micro_batches=2, runtime=sync)
        case "kept_after_backward":
            blocks = (unit(path, reshard_after_backward=path != "layers.1") for path in LAYERS)
            return decisions((*blocks, ROOT), shard=n, num_micro_batches=2)
        case "offload":
            tiers = {"parameter_tier": "host", "optimizer_tier": "host"}
            blocks = (unit(path, **(tiers if path == "layers.1" else {})) for path in LAYERS)
            return decisions((*blocks, ROOT), shard=n)
        case "other_dims":
            names = ("embedding.weight", "layers.2.attention.q.weight")
            return decisions(PLAIN, shard=n, shard_dims=tuple({"parameter": name, "dim": 1} for name in names))
        case "selective":
            kept = {"policy": "selective", "saved_ops": ("aten.mm.default",)}
            activations = tuple({"module": path} | kept for path in ("layers.0", "layers.2"))
            return decisions(PLAIN, shard=n, activations=activations)
        case "float16":
            return decisions(PLAIN, shard=n, reduce_dtype="float16")
        case "unused":
            return decisions(PLAIN, shard=n, runtime={"reduce_scatter_unused_params": True})
        case "knobs":
            knobs = {"reduce_scatter_max_input_buffers": 2, "separate_reduce_scatter_group": True}
            return decisions(PLAIN, shard=n, runtime=knobs)
        case "reshard_to_two":
            blocks = (unit(path, reshard_after_forward=2) for path in LAYERS)
            return decisions((*blocks, ROOT), shard=n)
        case "everything":
            activations = checkpointed("layers.1", "layers.3")
            casts = {"cast_forward_inputs": False, "output_dtype": "float32", **BFLOAT16}
            return decisions(_everything(), shard=half, replicate=2, activations=activations, **casts)
        case _:
            raise ValueError(case)

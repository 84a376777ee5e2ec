"""Examples shown in the OpenAPI document: small, complete and valid."""

from typing import Any

from profiles_db.tables import DocumentKind

_LAYER = [
    {"name": "attn.weight", "shape": [3072, 1024], "dtype": "bfloat16"},
    {"name": "mlp.weight", "shape": [4096, 1024], "dtype": "bfloat16"},
]
_WORK = {"flops": {"bs": 14_680_064}, "moved_bytes": {"one": 14_680_064, "bs": 20_480}, "num_kernels": 12}

MODEL: dict[str, Any] = {
    "name": "decoder-2x1024",
    "parameter_sets": {
        "embedding": [{"name": "weight", "shape": [32000, 1024], "dtype": "bfloat16"}],
        "layer": _LAYER,
        "head": [{"name": "weight", "shape": [32000, 1024], "dtype": "bfloat16"}],
    },
    "modules": [
        {"path": "embedding", "parameters": "embedding"},
        {"path": "layers.0", "parameters": "layer"},
        {"path": "layers.1", "parameters": "layer"},
        {"path": "head", "parameters": "head"},
    ],
    "kinds": {
        "embedding": {"role": "embedding"},
        "layer": {
            "role": "block",
            "regions": [{"kind": "matmul", "forward": _WORK, "backward": _WORK, "recompute": _WORK}],
            "none": {"saved": [{"size_bytes": {"bs": 18_432}, "op": "aten.mm"}]},
            "full": {"saved": [{"size_bytes": {"bs": 2_048}, "from_input": True}]},
            "gradient_order": ["mlp.weight", "attn.weight"],
        },
        "head": {"role": "head"},
        "loss": {"role": "loss"},
    },
    "calls": [
        {"path": "embedding", "kind": "embedding"},
        {"path": "layers.0", "kind": "layer"},
        {"path": "layers.1", "kind": "layer"},
        {"path": "head", "kind": "head"},
        {"path": "(loss)", "kind": "loss"},
    ],
    "tree_sha256": "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "points": [{"micro_batch": 1, "sequence": 512}],
    "torch_version": "2.13.0",
}

CLUSTER: dict[str, Any] = {
    "name": "two nodes of eight",
    "node_groups": [
        {
            "num_nodes": 2,
            "devices_per_node": 8,
            "device": {
                "name": "accelerator-80",
                "memory_bytes": 85_899_345_920,
                "memory_bytes_per_s": 3_350_000_000_000,
                "flops_per_s": {"bfloat16": 989_000_000_000_000},
            },
            "host_memory_bytes": 2_199_023_255_552,
            "host_cores": 128,
            "intra_node": {"name": "switch", "bytes_per_s": 450_000_000_000, "latency_ns": 2_000},
        }
    ],
    "inter_node": {"name": "rail", "bytes_per_s": 50_000_000_000, "latency_ns": 5_000},
}

PROFILE: dict[str, Any] = {
    "name": "decoder-2x1024 on accelerator-80",
    "calls": [{"kind": "layer", "micro_batch": 1, "sequence": 512, "forward_ns": 61_000, "backward_ns": 118_000}],
    "collectives": [
        {
            "collective": "all_gather",
            "num_ranks": 16,
            "num_nodes": 2,
            "points": [{"size_bytes": 1_048_576, "duration_ns": 58_000}],
        }
    ],
}

WORKLOAD: dict[str, Any] = {"micro_batch": 1, "sequence": 512, "global_batch": 64}

REFERENCES: dict[str, Any] = {
    "model": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "cluster": "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
    "workload": WORKLOAD,
}

REQUEST: dict[str, Any] = {"model": MODEL, "cluster": CLUSTER, "workload": WORKLOAD}

MEASUREMENT: dict[str, Any] = {
    "plan_id": "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "run": "decoder-2026-03-02",
    "first_step": 100,
    "last_step": 199,
    "num_ranks": 16,
    "step_time_ns": 61_400_000,
    "step_time_p99_ns": 64_900_000,
    "peak_bytes": 41_231_686_041,
    "reserved_bytes": 43_486_543_872,
    "device": "accelerator-80",
    "torch_version": "2.13.0",
    "measured_at": "2026-03-02T10:00:00+00:00",
}

DOCUMENTS: dict[DocumentKind, dict[str, Any]] = {
    DocumentKind.MODEL: MODEL,
    DocumentKind.CLUSTER: CLUSTER,
    DocumentKind.PROFILE: PROFILE,
}

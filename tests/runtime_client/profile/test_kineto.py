"""A trace of real FSDP2 on one gloo rank becomes a profile; one of an accelerator is written by hand."""

import json
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.fsdp import fully_shard
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from planner.profiles import NoMeasurements
from planner.profiles.imports import read_measurements
from planner.profiles.kineto import read_trace
from planner.schema import CurvePoint, InconsistentRequest, ModelDescription, Profile
from runtime_client.describe import TrainingExample, describe, token_inputs
from tests.real.llama import Llama

NUM_STEPS = 2


@pytest.fixture(scope="module")
def model() -> ModelDescription:
    def build() -> TrainingExample:
        return TrainingExample(model=Llama(), inputs=token_inputs)

    return describe(build, name="llama", micro_batch=2, sequence=16, param_dtype=None)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        module = Llama()
        mesh = dist.init_device_mesh("cpu", (1,))
        for layer in module.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        tokens = torch.zeros(2, 16, dtype=torch.long)
        with profiler(activities=[ProfilerActivity.CPU]) as recorded:
            for _ in range(NUM_STEPS):
                module(tokens).sum().backward()
        path = tmp_path_factory.mktemp("trace") / "trace.json"
        recorded.export_chrome_trace(str(path))
        yield path.read_text()
    finally:
        dist.destroy_process_group()


def test_units_of_a_real_trace(trace: str, model: ModelDescription) -> None:
    made = read_trace(trace, model, micro_batch=2, sequence=16, name="traced", source="trace.json")
    (call,) = made.calls
    assert (call.kind, call.micro_batch, call.sequence) == ("block", 2, 16)
    assert call.forward_ns
    assert call.backward_ns
    assert call.provenance.num_samples == NUM_STEPS * len(Llama().layers)
    assert Profile.from_json(made.to_json()) == made


def test_a_trace_without_units_is_refused(model: ModelDescription) -> None:
    with pytest.raises(NoMeasurements, match="neither hooks of FSDP2 around modules of 'llama' nor kernels"):
        read_trace('{"traceEvents": []}', model, micro_batch=1, sequence=16, name="x", source="x")


def event(name: str, cat: str, ts: float, dur: float, tid: int = 1, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "tid": tid, "args": args}


def test_kernels_count_by_when_they_were_launched(model: ModelDescription) -> None:
    """The host launches within 20 us what the device works on for 300, and a gather that does not count."""
    gather = {"Collective name": "_allgather_base", "dtype": "BFloat16", "Group size": 8}
    events = [
        event("FSDP::pre_forward (layers.0)", "user_annotation", 0, 10),
        event("cudaLaunchKernel", "cuda_runtime", 12, 1, correlation=1),
        event("cudaLaunchKernel", "cuda_runtime", 14, 1, correlation=2),
        event("cudaLaunchKernel", "cuda_runtime", 15, 1, correlation=3),
        event("FSDP::post_forward (layers.0)", "user_annotation", 30, 5),
        event("cudaLaunchKernel", "cuda_runtime", 40, 1, correlation=4),
        event("gemm", "kernel", 1_000, 100, tid=7, correlation=1),
        event("gemm", "kernel", 1_100, 200, tid=7, correlation=2),
        event("ncclDevKernel_AllGather", "kernel", 1_000, 500, tid=8, correlation=3, **gather)
        | {"args": {**gather, "correlation": 3, "In msg nelems": 512, "Out msg nelems": 4096}},
        event("later", "kernel", 1_300, 999, tid=7, correlation=4),
    ]
    made = read_trace(json.dumps({"traceEvents": events}), model, micro_batch=1, sequence=16, name="x", source="x")
    assert [(call.kind, call.forward_ns, call.backward_ns) for call in made.calls] == [("block", 300_000, None)]
    (curve,) = made.collectives
    assert (curve.collective, curve.num_ranks) == ("all_gather", 8)
    assert curve.points == (CurvePoint(size_bytes=8192, duration_ns=500_000),)


def test_a_file_that_holds_profiles() -> None:
    """As `scripts/gpu_check.py` writes it."""
    profiles = [Profile(name="llama", launch_ns=5), Profile(name="moe", launch_ns=6)]
    read = {"is_table": False, "model": None, "size": (1, None), "source": "gpu_check.json"}

    def text(*chosen: Profile) -> str:
        return json.dumps({"size": {}, "measurements": [], "profiles": [one.model_dump() for one in chosen]})

    assert read_measurements(text(*profiles), name="moe", **read) == profiles[1]
    assert read_measurements(text(profiles[0]), name=None, **read) == profiles[0]
    with pytest.raises(InconsistentRequest, match="holds the profiles llama, moe; choose one with --name"):
        read_measurements(text(*profiles), name=None, **read)
    with pytest.raises(NoMeasurements, match="lists no profile"):
        read_measurements(text(), name=None, **read)
    assert read_measurements(profiles[0].to_json(), name="mine", **read).name == "mine"
    with pytest.raises(InconsistentRequest, match="is a trace; give --model and --seq"):
        read_measurements('{"traceEvents": []}', name=None, **read)

"""`describe`: traces a model at several points and puts the description together."""

from collections.abc import Callable, Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.schema.base import DType
from planner.schema.model import ModelDescription, TracePoint
from runtime_client.describe.assemble import assemble, require_equal_ops, wished_name
from runtime_client.describe.errors import DifferentTraces, NotPolynomial
from runtime_client.describe.example import TrainingExample
from runtime_client.describe.fit import PointSet, fixed_batch_points, general_points
from runtime_client.describe.frontier import find_frontier, with_parameters
from runtime_client.describe.kernels import ZeroScalars
from runtime_client.describe.parts import trace_parts
from runtime_client.describe.point import PointTrace, refuse_absurd_activations, trace_point
from runtime_client.describe.prepare import (
    RegisteredParameters,
    buffers_bytes,
    prepare_parameters,
    read_parameters,
    unwrap_checkpoints,
)
from runtime_client.describe.run import RunTrace, Subject, last_calls_held, run
from runtime_client.describe.sample import completed, skippable_blocks
from runtime_client.describe.selective import with_selective
from runtime_client.describe.storages import Label
from runtime_client.fingerprint import tree_sha256


def describe(
    build: Callable[[], TrainingExample],
    *,
    name: str,
    micro_batch: int,
    sequence: int,
    param_dtype: DType | None = DType.BFLOAT16,
    output_dtype: DType | None = None,
) -> ModelDescription:
    """Describe a model without allocating it.

    Args:
        build: makes the model and its inputs; called under `FakeTensorMode`, so that any size costs no memory.
        name: name of the description.
        micro_batch: sequences per rank in one forward, near which the description is exact.
        sequence: tokens per sequence, likewise; no longer sequence is traced.
        param_dtype: element type of parameters and floating inputs in forward and backward, as in
            `MixedPrecisionPolicy`; None keeps the storage types.
        output_dtype: element type of the floating tensors that the loss gets from the model, likewise.

    Raises:
        NotDescribable: the model does what no description can hold; the message names the module and a remedy.
    """
    with FakeTensorMode():
        with ZeroScalars():  # type: ignore[no-untyped-call]
            example = build()
        example.model.train()
        unwrap_checkpoints(example.model)
        frontier = find_frontier(example.model)
        names = {item.path: wished_name(item.path, item.role) for item in frontier}
        registered = read_parameters(example.model, frontier, names)
        buffers = buffers_bytes(example.model)
        tree = tree_sha256(example.model)
        prepare_parameters(example.model, param_dtype)
        subject = Subject(
            example=example,
            frontier=frontier,
            param_dtype=param_dtype,
            output_dtype=output_dtype,
            paths={module: path for path, module in example.model.named_modules()},
            joined=with_parameters(frontier),
        )
        point_set, traces, skippable = _trace_near(subject, micro_batch, sequence, registered)
        parts = trace_parts(subject, traces, point_set, skippable)
    body = assemble(point_set, traces, parts)
    return ModelDescription(
        name=name,
        parameter_sets=registered.parameter_sets,
        modules=registered.modules,
        kinds=body.kinds,
        calls=body.calls,
        shared=body.shared,
        held_inputs=body.held_inputs,
        buffers_bytes=buffers,
        inputs_bytes=body.inputs_bytes,
        tree_sha256=tree,
        param_dtype=param_dtype or DType.FLOAT32,
        output_dtype=output_dtype,
        points=point_set.points,
        torch_version=torch.__version__.partition("+")[0],
    )


def _trace_near(
    subject: Subject, micro_batch: int, sequence: int, registered: RegisteredParameters
) -> tuple[PointSet, list[PointTrace], frozenset[str]]:
    general = general_points(micro_batch, sequence)
    last_calls = last_calls_held(subject, general.points[0]) if subject.blocks else {}
    base, plain = _trace_all(subject, general.points[0], last_calls)
    refuse_absurd_activations(base, plain, _parameter_bytes(registered, subject.param_dtype))
    skipped = skippable_blocks(base, plain)
    one_of_each = skippable_blocks(base, plain, num_first=1, num_last=0)
    traces = {general.points[0]: base}

    def trace(point_set: PointSet) -> list[PointTrace]:
        for point in point_set.points:
            if point not in traces:
                traces[point] = _trace(subject, point, base, skipped, last_calls)
                require_equal_ops([base, traces[point]])
        return [traces[point] for point in point_set.points]

    try:
        assemble(general, trace(general))
        point_set = general
    except (DifferentTraces, NotPolynomial):
        point_set = fixed_batch_points(micro_batch, sequence)
    return point_set, with_selective(subject, point_set, trace(point_set), plain), one_of_each


def _trace(
    subject: Subject,
    point: TracePoint,
    base: PointTrace,
    skipped: frozenset[str],
    last_calls: Mapping[Label, int],
) -> PointTrace:
    if skipped:
        sample, _ = _trace_all(subject, point, last_calls, skipped)
        whole = completed(sample, base, skipped)
        if whole is not None:
            return whole
    return _trace_all(subject, point, last_calls)[0]


def _trace_all(
    subject: Subject, point: TracePoint, last_calls: Mapping[Label, int], skipped: frozenset[str] = frozenset()
) -> tuple[PointTrace, RunTrace]:
    plain = run(subject, point, checkpointed=False, skipped=skipped)
    checkpointed = run(subject, point, checkpointed=True, skipped=skipped) if subject.blocks else None
    return trace_point(point, plain, checkpointed, last_calls), plain


def _parameter_bytes(registered: RegisteredParameters, param_dtype: DType | None) -> dict[str, int]:
    return {
        module.path: sum(
            parameter.num_elements * (param_dtype or parameter.dtype).itemsize_bytes
            for parameter in registered.parameter_sets[module.parameters]
        )
        for module in registered.modules
    }

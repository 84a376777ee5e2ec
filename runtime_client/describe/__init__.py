"""Describes any `nn.Module` for the planner by tracing it on fake tensors: no memory, no device, no data."""

from runtime_client.describe.errors import (
    AbsurdActivations,
    DataDependent,
    DifferentTraces,
    HiddenWorkspace,
    NoParameters,
    NoTarget,
    NotDescribable,
    NotPolynomial,
    RepeatedModule,
    ScalarParameter,
)
from runtime_client.describe.example import TrainingExample, cross_entropy_loss, load_target, token_inputs
from runtime_client.describe.huggingface import from_hf_config
from runtime_client.describe.pipeline import describe

__all__ = [
    "AbsurdActivations",
    "DataDependent",
    "DifferentTraces",
    "HiddenWorkspace",
    "NoParameters",
    "NoTarget",
    "NotDescribable",
    "NotPolynomial",
    "RepeatedModule",
    "ScalarParameter",
    "TrainingExample",
    "cross_entropy_loss",
    "describe",
    "from_hf_config",
    "load_target",
    "token_inputs",
]

"""Workload: what is trained, at which sizes and precisions, with which optimizer."""

from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.schema.atom import Atom
from planner.schema.base import Document, DType, Name, Part, Positive
from planner.schema.module_paths import modules_above


class Precision(Part):
    """Element types of `MixedPrecisionPolicy`; None keeps the storage dtype."""

    param_dtype: DType | None = DType.BFLOAT16
    reduce_dtype: DType | None = DType.FLOAT32
    output_dtype: DType | None = None
    cast_forward_inputs: bool = True


class OptimizerName(StrEnum):
    """Optimizers whose state and step this planner knows."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"
    SGD_MOMENTUM = "sgd_momentum"
    ADAFACTOR = "adafactor"
    ADAMW_8BIT = "adamw_8bit"
    MUON = "muon"


def matches_any(name: str, globs: str) -> bool:
    """Whether a full name matches one of some globs, separated by commas."""
    return globs == "*" or any(fnmatchcase(name, glob.strip()) for glob in globs.split(","))


OptimizerImplementation = Literal["foreach", "fused", "for_loop"]
"""How torch steps: over all tensors at once with a transient copy, in one kernel, or tensor by tensor."""


class OptimizerGroup(Part):
    """One parameter group."""

    parameters: str = "*"
    """Globs over full names, separated by commas."""
    optimizer: OptimizerName = OptimizerName.ADAMW
    implementation: OptimizerImplementation = "foreach"
    state_dtype: DType | None = None
    """Element type of the moments; None takes the storage dtype of the parameter."""

    def holds(self, name: str) -> bool:
        """Whether a parameter of this full name matches; it belongs to the first group that it matches."""
        return matches_any(name, self.parameters)


class Quantizer(StrEnum):
    """How the trainer quantizes weights: in blocks that share a scale, which shards must not cut."""

    NF4 = "nf4"
    FP8_ROWWISE = "fp8_rowwise"
    FP8_BLOCKWISE = "fp8_blockwise"
    INT8_ROWWISE = "int8_rowwise"
    MX = "mx"
    NVFP4 = "nvfp4"


class QuantizerGroup(Part):
    """Weights that one quantizer takes: matrices and stacks of them that match.

    `*` leaves embeddings and heads out, as quantizers of linear layers do; another pattern takes whatever matches.
    """

    parameters: str = "*"
    """Globs over full names, separated by commas."""
    quantizer: Quantizer

    def holds(self, name: str, num_dims: int, *, is_table: bool) -> bool:
        """Whether it quantizes a parameter of this full name; the first group that does counts."""
        return num_dims > 1 and matches_any(name, self.parameters) and not (self.parameters == "*" and is_table)


class AtomRule(Part):
    """What shards must not cut in some parameters: quantization blocks, tiles, whole matrices."""

    parameters: str = "*"
    """Globs over full names, separated by commas."""
    atom: Atom

    def holds(self, name: str) -> bool:
        """Whether a parameter of this full name matches."""
        return matches_any(name, self.parameters)


class Parallelism(Part):
    """Degrees that are already in the module handed to `fully_shard`."""

    tensor: Positive = 1
    pipeline: Positive = 1
    context: Positive = 1
    expert: Positive = 1


class Workload(Document):
    """One training job, without its model and its machines. Batches are counted in sequences."""

    kind: ClassVar[str] = "workload"

    schema_version: Literal[1] = 1
    micro_batch: Positive
    """Sequences per rank in one forward."""
    sequence: Positive
    """Tokens per sequence."""
    global_batch: Positive
    """Sequences per optimizer step over all ranks."""
    precision: Precision = Precision()
    optimizer_groups: Annotated[tuple[OptimizerGroup, ...], Field(min_length=1)] = (OptimizerGroup(),)
    quantizer_groups: Annotated[tuple[QuantizerGroup, ...], Field(max_length=1000)] = ()
    """The blocks of the first that holds a parameter stay whole, beside the atom of its description."""
    atoms: Annotated[tuple[AtomRule, ...], Field(max_length=1000)] = ()
    """The first rule that matches a parameter replaces the atom of its description and of its quantizer."""
    conditional: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Globs over paths of modules that some rank skips in some micro-batch: towers of a modality, experts that are
    called one by one. A module that every rank runs, on a dummy input where there is none, is not conditional."""
    forward_methods: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    """Methods by which the trainer enters the model beside forward, each after the path of its module: `generate`,
    `encoder.encode`. They are no part of the step."""
    parallelism: Parallelism = Parallelism()
    compile: bool = False
    torch_version: Name = "2.13"
    """Version in the trainer's environment; limits the knobs a plan may use."""

    def is_conditional(self, path: str) -> bool:
        """Whether a module, or one around it, is among the conditional ones."""
        around = [path, *modules_above(path)]
        return any(fnmatchcase(module, glob) for glob in self.conditional for module in around)

    def with_implementation(self, implementation: OptimizerImplementation) -> "Workload":
        """The same with another implementation of Adam and AdamW."""
        groups = tuple(
            group.model_copy(update={"implementation": implementation})
            if group.optimizer in (OptimizerName.ADAM, OptimizerName.ADAMW)
            else group
            for group in self.optimizer_groups
        )
        return self.model_copy(update={"optimizer_groups": groups})

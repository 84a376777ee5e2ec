"""ModelDescription: what a module is made of and what its forward and backward do, without the module.

A description is the module as it is handed to `fully_shard`. Its forward is a sequence of *calls*. A call
runs one module of the frontier: a block (a child of a repeated list), any other module that holds no such list, or
the code of a container between its children ("glue", the container's path). What calls do is stored
once per *kind*, however often it repeats.
"""

import hashlib
from enum import StrEnum
from functools import cached_property
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from planner.schema.atom import Atom, ElementAtom
from planner.schema.base import (
    MAX_INTEGER,
    Bytes,
    Count,
    Document,
    DType,
    Fraction,
    ModulePath,
    Name,
    Part,
    Positive,
    Sha256,
)
from planner.schema.consistency import (
    require_references,
    require_sound_kinds,
    require_sound_parts,
    require_sound_ties,
)
from planner.schema.polynomial import Polynomial


class Parameter(Part):
    """One parameter of a module; `name` is relative to the module that lists it."""

    name: Name
    shape: Annotated[tuple[Count, ...], Field(max_length=16)]
    dtype: DType = DType.FLOAT32
    requires_grad: bool = True
    tied_to: str | None = None
    """Full name of the parameter whose storage this one shares (the first in registration order)."""
    optimizer_group: Name = "default"
    atom: Atom = ElementAtom()
    contiguous: bool = True

    @model_validator(mode="after")
    def _size_is_exact(self) -> Self:
        if self.size_bytes > MAX_INTEGER:
            raise ValueError(f"shape {list(self.shape)} takes more than 2^53 - 1 bytes")
        return self

    @property
    def num_elements(self) -> int:
        """Product of the shape; 1 for a scalar."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def size_bytes(self) -> int:
        """Bytes in the storage dtype."""
        return self.num_elements * self.dtype.itemsize_bytes


class RegionKind(StrEnum):
    """What the time of a region is mostly spent on; decides its attainable efficiency."""

    MATMUL = "matmul"
    GROUPED_MATMUL = "grouped_matmul"
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    NORM = "norm"
    ELEMENTWISE = "elementwise"
    EMBEDDING = "embedding"
    LOSS = "loss"
    OTHER = "other"


class Work(Part):
    """Work of one pass over a region."""

    flops: Polynomial = Polynomial()
    moved_bytes: Polynomial = Polynomial()
    """Bytes read and written by the kernels, each tensor once per kernel."""
    num_kernels: Count = 0
    """Kernels launched; what the CPU has to issue."""


class Region(Part):
    """Consecutive operations of one module inside a call; `module` is relative to the call's path."""

    module: ModulePath = ""
    kind: RegionKind = RegionKind.OTHER
    dtype: DType = DType.BFLOAT16
    """Element type that the arithmetic runs in."""
    forward: Work = Work()
    backward: Work = Work()
    """Backward alone, without recomputation."""
    recompute: Work = Work()
    """What is run again in backward when the call is checkpointed in full (early stop included)."""
    host_sync: bool = False
    """The host waits for the device here (`.item()`, `.tolist()`): the CPU's run-ahead ends."""


class SavedTensor(Part):
    """A storage that autograd keeps from forward to backward, counted once."""

    size_bytes: Polynomial
    op: str = ""
    """Operation that made it, e.g. `aten.mm`; empty when it came from outside the call."""
    region: Count = 0
    """Index of the region in which it was saved."""
    from_input: bool = False
    """It is an input of the call (made by an earlier one) rather than made inside."""


class Moment(Part):
    """Live bytes at one allocation point inside a call.

    `live_bytes` counts all activation-like storages alive at that point (inputs of the call, what it has
    saved, temporaries, gradients of activations), less what *earlier* calls keep for backward. Parameters, their
    gradients and buffers are not counted; `num_gradients` says how many parameters of `gradient_order` already
    have their full-size gradient.
    """

    region: Count = 0
    live_bytes: Polynomial
    num_gradients: Count = 0


class Liveness(Part):
    """What a call keeps and needs under one activation policy."""

    saved: tuple[SavedTensor, ...] = ()
    forward: tuple[Moment, ...] = ()
    """Moments of the forward pass that can be the peak (dominated ones are left out)."""
    backward: tuple[Moment, ...] = ()
    """Moments of the backward pass, recomputation included."""
    at_return: Polynomial = Polynomial()
    """Bytes alive beyond `after_forward` when this call returns: inputs that only its caller holds. Where a unit's
    pass ends with this call, its post-forward runs then."""
    after_forward: Polynomial = Polynomial()
    """Bytes alive between this call's forward and the next one's, beyond what is kept: its output."""
    after_backward: Polynomial = Polynomial()
    """Bytes alive between this call's backward and that of the call before it: gradients of its inputs."""
    before_sums: Polynomial = Polynomial()
    """Bytes alive beyond `after_backward` until autograd adds the gradients of this call's inputs to those that
    later calls gave the same tensors. Post-backward of a unit whose pass begins with this call comes before."""
    in_sums: tuple[Polynomial, ...] = ()
    """Bytes alive beyond `after_backward` at moments of these additions (dominated ones are left out)."""

    def kept_bytes(self, micro_batch: int, sequence: int) -> int:
        """Bytes kept from forward to backward."""
        return sum(tensor.size_bytes.at(micro_batch, sequence) for tensor in self.saved)


class SelectiveCheckpoint(Part):
    """Selective checkpointing of a call: outputs of some operations are kept, the others are recomputed."""

    saved_ops: Annotated[tuple[str, ...], Field(min_length=1)]
    """Operations whose outputs are kept, e.g. `aten.mm.default`; sorted."""
    liveness: Liveness
    recompute: tuple[Work, ...]
    """What each region runs again in backward."""


class CallRole(StrEnum):
    """Place of a call in the model."""

    BLOCK = "block"
    EMBEDDING = "embedding"
    NORM = "norm"
    HEAD = "head"
    LOSS = "loss"
    GLUE = "glue"
    OTHER = "other"


class Branch(Part):
    """An optional path through a call (expert routing, skipped towers)."""

    module: ModulePath
    probability: Fraction = 1.0
    experts_per_token: Count | None = None
    num_experts: Count | None = None


class CallKind(Part):
    """What a call does: stored once, however often it repeats."""

    role: CallRole = CallRole.OTHER
    regions: tuple[Region, ...] = ()
    none: Liveness = Liveness()
    """Liveness when everything autograd saves is kept."""
    full: Liveness | None = None
    """Liveness under full checkpointing of the call; absent where it cannot be checkpointed."""
    selective: tuple[SelectiveCheckpoint, ...] = ()
    """Ways between `none` and `full` of which none is better in both kept bytes and recomputation."""
    parts: tuple["Call", ...] = ()
    """The same call as a sequence of smaller ones (paths relative to it), for plans with units inside it."""
    gradient_order: tuple[str, ...] = ()
    """Relative names of the parameters in the order in which backward completes their gradients."""
    input_requires_grad: bool = True
    """Some tensor input requires grad; without it FSDP2 reduces the unit in the final callback."""
    output_requires_grad: bool = True
    branches: tuple[Branch, ...] = ()
    kernels: tuple[str, ...] = ()
    """Attention and expert kernels seen, e.g. `aten._scaled_dot_product_flash_attention_for_cpu`."""

    def recomputation(self, saved_ops: tuple[str, ...] = ()) -> tuple[Work, ...]:
        """What each region runs again under full checkpointing, or under selective with these operations kept."""
        if not saved_ops:
            return tuple(region.recompute for region in self.regions)
        return next(option.recompute for option in self.selective if option.saved_ops == saved_ops)


class Call(Part):
    """One step of the forward: module `path` does what `kind` says.

    After those of the modules come the cast of the model's output to `output_dtype`, path `(output)`, and the loss,
    path `(loss)`, each at most once.
    """

    path: Annotated[str, Field(max_length=500)]
    kind: Name


OUTPUT_PATH = "(output)"
LOSS_PATH = "(loss)"


class Module(Part):
    """A frontier module and the parameters it registers, in registration order."""

    path: ModulePath
    parameters: Name
    """Key of `ModelDescription.parameter_sets`."""


class KeptBy(StrEnum):
    """Under which activation policies something stays from forward to backward."""

    BOTH = "both"
    NONE = "none"
    """Only where autograd keeps what it saves; checkpointing needs it no longer."""
    FULL = "full"
    """Only as an input of checkpointed blocks, selectively or in full; autograd alone saves it nowhere."""


class SharedTensor(Part):
    """A storage that several calls save (position tables, masks, encoder outputs): counted once.

    It lives from the forward of `first_call` to the backward of `first_call`. With `kept_by` other than `both` it
    counts only where, of the calls from `first_call` to `last_call` that can be checkpointed (their kind has
    `full`), at least one is (`full`; selectively or in full), or at least one is not (`none`); up to the forward of
    `held_until` it counts in any case.
    """

    size_bytes: Polynomial
    first_call: Count
    last_call: Count
    kept_by: KeptBy = KeptBy.BOTH
    held_until: Count | None = None
    """Last call in whose forward the code around the calls still holds it; None where that is `first_call` or one
    before."""


class HeldInput(Part):
    """A storage that one call alone keeps, and that the code around the calls holds after that call's forward.

    It is part of what the call keeps, and counts apart only where the call's activations are offloaded: the device
    lets go of it with the forward of `held_until`.
    """

    size_bytes: Polynomial
    call: Count
    held_until: Count


class StateTier(StrEnum):
    """Where a piece of training state lives."""

    DEVICE = "device"
    HOST = "host"
    NVME = "nvme"


class TrainingState(Part):
    """A further class of state that parameters carry (masters, moments, EMA, noise history)."""

    name: Name
    parameters: str = "*"
    """Glob over parameter names."""
    dtype: DType = DType.FLOAT32
    copies: Positive = 1
    sharded: bool = True
    tier: StateTier = StateTier.DEVICE
    liveness: Literal["persistent", "backward", "optimizer_step"] = "persistent"
    recovery: Literal["restore", "recompute", "discard"] = "restore"


class TracePoint(Part):
    """A (micro-batch, sequence) point that was traced."""

    micro_batch: Positive
    sequence: Positive


class ModelDescription(Document):
    """See the module docstring."""

    kind: ClassVar[str] = "model"

    schema_version: Literal[1] = 1
    name: Name
    parameter_sets: dict[str, tuple[Parameter, ...]]
    modules: tuple[Module, ...]
    """Every module that registers parameters, in registration order; those never run are included."""
    kinds: dict[str, CallKind]
    calls: tuple[Call, ...]
    shared: tuple[SharedTensor, ...] = ()
    held_inputs: tuple[HeldInput, ...] = ()
    buffers_bytes: Bytes = 0
    """Registered buffers, replicated on every rank."""
    inputs_bytes: Polynomial = Polynomial()
    """Tensor arguments of one forward, labels among them, as the training loop holds them: in their own types and
    through the whole step. Copies in `param_dtype` are activations."""
    tree_sha256: Sha256
    """Hash of `path:ClassName` lines of all modules, without checkpoint and compile prefixes."""
    param_dtype: DType = DType.BFLOAT16
    """Element type that the trace ran in."""
    output_dtype: DType | None = None
    """Element type that the floating outputs of the model were cast to before the loss; None: no cast."""
    points: tuple[TracePoint, ...] = ()
    states: tuple[TrainingState, ...] = ()
    torch_version: str = ""

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        require_references(self)
        require_sound_ties(self.iter_parameters())
        require_sound_kinds(self)
        require_sound_parts(self)
        return self

    def iter_parameters(self) -> tuple[tuple[str, Parameter], ...]:
        """All `(full name, parameter)`, ties included, in registration order."""
        return tuple(
            (f"{module.path}.{parameter.name}" if module.path else parameter.name, parameter)
            for module in self.modules
            for parameter in self.parameter_sets[module.parameters]
        )

    @cached_property
    def num_parameters(self) -> int:
        """Elements of all parameters, tied ones once."""
        return sum(p.num_elements for _, p in self.iter_parameters() if p.tied_to is None)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the module itself (names, shapes, dtypes, grads, ties, tree), not of its trace.

        `runtime_client.fingerprint` computes the same from a live module without running it.
        """
        lines = [
            parameter_line(name, parameter.shape, parameter.dtype, parameter.requires_grad, parameter.tied_to)
            for name, parameter in self.iter_parameters()
        ]
        return fingerprint_of(lines, self.tree_sha256)


def parameter_line(
    name: str, shape: tuple[int, ...], dtype: DType, requires_grad: bool, tied_to: str | None
) -> str:
    """One line of a fingerprint."""
    sizes = "x".join(map(str, shape)) or "scalar"
    return f"{name} {sizes} {dtype} {'grad' if requires_grad else 'frozen'} {tied_to or '-'}"


def fingerprint_of(parameter_lines: list[str], tree_sha256: str) -> str:
    """`sha256:...` over the sorted parameter lines and the tree hash."""
    text = "\n".join([*sorted(parameter_lines), tree_sha256])
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

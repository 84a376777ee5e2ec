"""What can keep a module from being described; each error names the place and the remedy."""

from planner.schema.errors import ShardwrightError


class NotDescribable(ShardwrightError):
    """Base of everything that `describe` refuses."""

    code = "not_describable"


class NoParameters(NotDescribable):
    """The module has nothing to shard or nothing to train."""

    code = "no_parameters"


class ScalarParameter(NotDescribable):
    """A parameter without dimensions, which `fully_shard` cannot split."""

    code = "scalar_parameter"

    def __init__(self, name: str) -> None:
        super().__init__(f"parameter {name!r} has no dimension and cannot be sharded: give it the shape (1,)")


class RepeatedModule(NotDescribable):
    """A module with parameters that one forward runs several times (weights shared over depth)."""

    code = "repeated_module"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"module {path!r} runs more than once in one forward, inside a model that has no list of blocks, as "
            "ALBERT: put the module that is repeated into a ModuleList, once for each run, and call its items, or "
            "give each run a module of its own"
        )


class DataDependent(NotDescribable):
    """An operation whose result has a shape that only real data can tell."""

    code = "data_dependent"

    def __init__(self, path: str, op: str) -> None:
        super().__init__(
            f"module {path!r} runs {op}, whose output shape depends on data (an expert loop, nonzero, masked "
            "indexing): use operations of static shape; for mixture-of-experts models of transformers set "
            'experts_implementation="grouped_mm"'
        )


class AbsurdActivations(NotDescribable):
    """A block that keeps far more than its size can explain."""

    code = "absurd_activations"

    def __init__(self, path: str, kept_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"block {path!r} keeps {kept_bytes / 2**30:.3g} GiB for backward, more than "
            f"{limit_bytes / 2**30:.3g} GiB (64 times its inputs, outputs and parameters): its kernels copy "
            'parameters per token, as batched_mm does for experts; set experts_implementation="grouped_mm"'
        )


class HiddenWorkspace(NotDescribable):
    """An operation that needs memory which a trace does not show, at a moment that it does not show."""

    code = "hidden_workspace"


class DifferentTraces(NotDescribable):
    """Two traces of the module that should run the same operations do not."""

    code = "different_traces"


class NotPolynomial(NotDescribable):
    """A quantity that the six terms in micro-batch and sequence length do not give exactly."""

    code = "not_polynomial"


class NoTarget(NotDescribable):
    """`pkg.module:build` names nothing that builds a training example."""

    code = "no_target"

"""Decisions from a few options, for `simulate`."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from api.cli.requests import parse_value, refusals_of
from planner.program.units import partition
from planner.schema import (
    ActivationPlan,
    ActivationPolicy,
    CallRole,
    Decisions,
    InconsistentRequest,
    InvalidDocument,
    MeshPlan,
    PlanRequest,
    RuntimeKnobs,
    UnitPlan,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByHand:
    """One setting for all blocks: what a hand-written FSDP2 script usually does."""

    shard: int | None = None
    """Shard degree; None takes all ranks."""
    reshard: str = "true"
    checkpoint: tuple[str, ...] = ()
    """`none`, `full` (every block) or globs over block paths."""
    prefetch: int = 0
    """Blocks gathered ahead in forward and in backward; 0 is implicit."""
    units: tuple[str, ...] = ()
    """Further units, each a comma-separated list of modules."""
    reduce_buffers: int = 1

    def decisions(self, request: PlanRequest) -> Decisions:
        """Every block a unit, then the further units, then the root.

        Raises:
            ShardwrightError: a value is not understood, or degrees do not divide.
        """
        with refusals_of("set of decisions"):
            return self._decisions(request)

    def _decisions(self, request: PlanRequest) -> Decisions:
        world = request.cluster.num_devices
        workload = request.workload
        shard = world if self.shard is None else self.shard
        _divides(shard, world, f"--shard {shard} must divide the {world} ranks of the cluster")
        sequences = workload.micro_batch * world
        _divides(
            sequences,
            workload.global_batch,
            f"--global-batch {workload.global_batch} must be a multiple of --micro-batch x ranks = {sequences}",
        )
        blocks = block_paths(request)
        units = self._units(blocks)
        sizes = {
            unit.modules: sum(parameter.num_elements for _, parameter in unit.parameters)
            for unit in partition(request.model, [unit.modules for unit in units[:-1]]).units
        }
        return Decisions(
            mesh=MeshPlan(replicate=world // shard, shard=shard),
            units=tuple(unit.model_copy(update={"num_parameters": sizes[unit.modules]}) for unit in units),
            activations=self._activations(blocks),
            param_dtype=workload.precision.param_dtype,
            reduce_dtype=workload.precision.reduce_dtype,
            output_dtype=workload.precision.output_dtype,
            cast_forward_inputs=workload.precision.cast_forward_inputs,
            forward_methods=workload.forward_methods,
            micro_batch=workload.micro_batch,
            num_micro_batches=workload.global_batch // sequences,
            runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=self.reduce_buffers),
        )

    def _units(self, blocks: tuple[str, ...]) -> tuple[UnitPlan, ...]:
        reshard = parse_value(self.reshard)
        if isinstance(reshard, str) or (not isinstance(reshard, bool) and reshard < 1):
            raise InvalidDocument(f"--reshard {self.reshard!r} is not true, false or a number of ranks")
        if self.prefetch < 0:
            raise InvalidDocument(f"--prefetch {self.prefetch} is below 0; 0 leaves prefetching to FSDP2")
        further = [tuple(path.strip() for path in text.split(",")) for text in self.units]
        return (
            *(
                UnitPlan(
                    modules=(path,),
                    reshard_after_forward=reshard,
                    forward_prefetch=blocks[index + 1 : index + 1 + self.prefetch],
                    backward_prefetch=blocks[max(0, index - self.prefetch) : index][::-1],
                )
                for index, path in enumerate(blocks)
            ),
            *(UnitPlan(modules=modules, reshard_after_forward=reshard) for modules in further),
            UnitPlan(modules=("",)),
        )

    def _activations(self, blocks: tuple[str, ...]) -> tuple[ActivationPlan, ...]:
        globs = ["*" if text == "full" else text for text in self.checkpoint if text != "none"]
        for glob in globs:
            if not any(fnmatchcase(path, glob) for path in blocks):
                raise InconsistentRequest(
                    f"--checkpoint {glob!r} matches no block; blocks are {blocks[0]} ... {blocks[-1]}"
                    if blocks
                    else f"--checkpoint {glob!r}: this model has no repeated blocks"
                )
        return tuple(
            ActivationPlan(module=path, policy=ActivationPolicy.FULL)
            for path in blocks
            if any(fnmatchcase(path, glob) for glob in globs)
        )


def block_paths(request: PlanRequest) -> tuple[str, ...]:
    """Paths of the repeated blocks, in forward order, each once."""
    kinds = request.model.kinds
    return tuple(
        dict.fromkeys(call.path for call in request.model.calls if kinds[call.kind].role is CallRole.BLOCK)
    )


def _divides(part: int, whole: int, message: str) -> None:
    if part < 1 or whole % part:
        raise InconsistentRequest(message)

"""Errors of the trainer's side. Each names what it found, where, and what to do about it."""

from planner.schema.errors import ShardwrightError


class ApplyError(ShardwrightError):
    """A plan that cannot be applied to this model in this process; the model was left as it was."""

    code = "apply"


class PlanIdentityMismatch(ApplyError):
    """The body of a plan is not the one that its identity names."""

    code = "plan_identity_mismatch"


class InfeasiblePlan(ApplyError):
    """The plan says that nothing fits; there are no decisions to apply."""

    code = "infeasible_plan"


class TorchVersionMismatch(ApplyError):
    """The installed torch is not one that the plan was made for."""

    code = "torch_version_mismatch"


class MissingClientFeature(ApplyError):
    """The plan needs a knob that this client does not have."""

    code = "missing_client_feature"


class UnsupportedPlan(ApplyError):
    """The plan holds a decision that this client cannot carry out."""

    code = "unsupported_plan"


class ProcessGroupMissing(ApplyError):
    """`torch.distributed` has not been initialised."""

    code = "process_group_missing"


class WorldSizeMismatch(ApplyError):
    """The job has another number of ranks than the plan."""

    code = "world_size_mismatch"


class PlanDiffersBetweenRanks(ApplyError):
    """Ranks of one job hold different plans."""

    code = "plan_differs_between_ranks"


class RefusedOnAnotherRank(ApplyError):
    """This rank could apply the plan, another one cannot; alone, it would wait for it in the first collective."""

    code = "refused_on_another_rank"


class RanksMissing(ApplyError):
    """Not all ranks came to apply the plan in time."""

    code = "ranks_missing"


class HostBackendMissing(ApplyError):
    """Units are in host memory, and the process group has no backend there."""

    code = "host_backend_missing"


class MeshMismatch(ApplyError):
    """The device mesh handed over is not the mesh of the plan."""

    code = "mesh_mismatch"


class AlreadySharded(ApplyError):
    """Part of the model has been sharded before."""

    code = "already_sharded"


class FingerprintMismatch(ApplyError):
    """The model is not the one that was planned."""

    code = "fingerprint_mismatch"


class UnknownModule(ApplyError):
    """The plan names a module that the model does not have."""

    code = "unknown_module"


class UnitWithoutForward(ApplyError):
    """A unit is a container whose forward never runs, so FSDP2 would never gather it."""

    code = "unit_without_forward"


class UnitListedTwice(ApplyError):
    """A module belongs to more than one unit, or twice to one."""

    code = "unit_listed_twice"


class RootNotLast(ApplyError):
    """The last unit must be the root module, alone."""

    code = "root_not_last"


class UnitOrder(ApplyError):
    """A unit comes after one that contains it; `fully_shard` works bottom-up."""

    code = "unit_order"


class TiedParameterSplit(ApplyError):
    """Parameters that share their storage, or a module that units share, would be sharded apart."""

    code = "tied_parameter_split"


class MixedStorageDTypes(ApplyError):
    """Trainable parameters of one unit have different element types."""

    code = "mixed_storage_dtypes"


class ScalarParameter(ApplyError):
    """A parameter has no dimension that could be sharded."""

    code = "scalar_parameter"


class NonContiguousParameter(ApplyError):
    """A parameter is not contiguous in memory."""

    code = "non_contiguous_parameter"


class UninitializedParameter(ApplyError):
    """A parameter has no shape yet (a lazy module that never ran)."""

    code = "uninitialized_parameter"


class ScriptedModule(ApplyError):
    """Part of the model is a TorchScript module, which takes no hooks."""

    code = "scripted_module"


class ParameterHook(ApplyError):
    """A hook on a parameter would be lost, since sharding replaces the parameter."""

    code = "parameter_hook"


class SparseGradient(ApplyError):
    """A module makes sparse gradients, which FSDP2 cannot reduce."""

    code = "sparse_gradient"


class TrainableBuffer(ApplyError):
    """A buffer requires a gradient, which FSDP2 does not reduce."""

    code = "trainable_buffer"


class UnknownParameter(ApplyError):
    """The plan names a parameter that the model does not have."""

    code = "unknown_parameter"


class InvalidShardDim(ApplyError):
    """A parameter cannot be sharded on the dimension that the plan names."""

    code = "invalid_shard_dim"


class UnevenShardDim(ApplyError):
    """A dimension other than the first does not divide evenly by the shard degree."""

    code = "uneven_shard_dim"


class PartialReshardOfShardDim(ApplyError):
    """A unit is resharded to fewer ranks after forward and has parameters that are not sharded on dimension 0."""

    code = "partial_reshard_of_shard_dim"


class OffloadTierMismatch(ApplyError):
    """Parameters and optimizer state of a unit are planned in different memories."""

    code = "offload_tier_mismatch"


class UnknownSavedOperation(ApplyError):
    """The plan keeps the outputs of an operation that the installed torch does not have."""

    code = "unknown_saved_operation"


class UnitInsideSelectiveCheckpoint(ApplyError):
    """A unit lies inside a selectively checkpointed module, whose recomputation FSDP2 would change."""

    code = "unit_inside_selective_checkpoint"


class UnsupportedPrecision(ApplyError):
    """An element type that FSDP2 cannot compute or reduce in."""

    code = "unsupported_precision"


class PrefetchOrder(ApplyError):
    """Prefetch lists that contradict each other, or name something that is no unit."""

    code = "prefetch_order"


class ConflictingCheckpointing(ApplyError):
    """The model checkpoints activations on its own where the plan does not, or in another way."""

    code = "conflicting_checkpointing"


class UnknownForwardMethod(ApplyError):
    """A method that should gather as forward does is not one of its module."""

    code = "unknown_forward_method"


class OptimizerBuiltTooEarly(ShardwrightError):
    """An optimizer holds parameters that are not those of the sharded model: it would train nothing."""

    code = "optimizer_built_too_early"


class OptimizerDiffersFromPlan(ShardwrightError):
    """An optimizer steps in another way than the plan decided, and takes other memory."""

    code = "optimizer_differs_from_plan"


class BatchDiffersFromPlan(ShardwrightError):
    """A trainer is set to other micro-batches than the plan was made for."""

    code = "batch_differs_from_plan"


class ClientError(ShardwrightError):
    """A plan could not be obtained."""

    code = "client"


class PlanServiceError(ClientError):
    """The service refused the request; title and detail are the server's.

    `status` is the HTTP status, `problem_code` the stable code of the problem document when it has one.
    """

    code = "plan_service"

    def __init__(self, *, status: int, title: str, detail: str = "", problem_code: str | None = None) -> None:
        super().__init__(f"{title} (HTTP {status}){f': {detail}' if detail else ''}")
        self.status = status
        self.title = title
        self.detail = detail
        self.problem_code = problem_code


class ServiceUnavailable(ClientError):
    """The service gave no usable answer before the deadline."""

    code = "service_unavailable"


class UntrustedPlan(ClientError):
    """A plan without a signature of a trusted key."""

    code = "untrusted_plan"


class PlanNotShared(ClientError):
    """Rank 0 handed no plan on."""

    code = "plan_not_shared"


class NoPlanAvailable(ClientError):
    """The service did not answer in time and no earlier plan for this model and workload is cached."""

    code = "no_plan_available"

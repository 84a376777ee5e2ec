"""What this client can apply; a request carries it so that a plan never asks for more."""

from planner.schema import ClientFeature

CLIENT_FEATURES = (
    ClientFeature.HYBRID_MESH,
    ClientFeature.UNIT_MESH,
    ClientFeature.PREFETCH,
    ClientFeature.RESHARD_INTEGER,
    ClientFeature.CHECKPOINT_FULL,
    ClientFeature.CHECKPOINT_SELECTIVE,
    ClientFeature.GROUPED_UNITS,
    ClientFeature.OFFLOAD,
    ClientFeature.OPTIMIZER_OFFLOAD,
    ClientFeature.OPTIMIZER_NVME,
    ClientFeature.ACTIVATION_OFFLOAD,
    ClientFeature.REDUCE_SCATTER_BUFFERS,
    ClientFeature.SEPARATE_REDUCE_SCATTER_GROUP,
    ClientFeature.ACCUMULATION,
    ClientFeature.RAGGED_LAYOUT,
    ClientFeature.ALIAS_GATHERS,
    ClientFeature.MUON_OWNERS,
)

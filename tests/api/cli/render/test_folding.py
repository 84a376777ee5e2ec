from api.folding import decision_strips, fold_units
from planner.schema import ActivationPlan, ActivationPolicy, Decisions, MeshPlan, UnitPlan


def decide_units(*units, activations=()):
    return Decisions(
        mesh=MeshPlan(shard=8), units=units, activations=activations, micro_batch=1, num_micro_batches=1
    )


def test_equal_blocks_become_one_row(decide):
    rows = fold_units(decide(checkpointed=tuple(range(31)), kept=(31,)))
    assert [(row.name, row.num_units) for row in rows] == [
        ("model.embed_tokens", 1),
        ("model.layers.0-30", 31),
        ("model.layers.31", 1),
        ("model.norm + lm_head", 1),
        ("(root)", 1),
    ]
    assert (rows[1].traits.reshard, rows[1].traits.activations) == ("reshard", "checkpoint")
    assert (rows[2].traits.reshard, rows[2].traits.activations) == ("keep", "keep")


def test_every_third_block_is_said_so(decide):
    rows = fold_units(decide(checkpointed=tuple(range(0, 32, 3))))
    assert rows[1].name == "model.layers.0,3..30"
    assert rows[2].name == "model.layers.[21 of 1-31]"


def test_prefetch_lists_cut_by_the_end_of_the_model_do_not_split_a_row(decide):
    rows = fold_units(decide(checkpointed=(), prefetch=2))
    assert [(row.name, row.traits.prefetch) for row in rows if "layers" in row.name] == [
        ("model.layers.0-31", "2 forward")
    ]


def test_a_shorter_list_in_the_middle_does_split_a_row():
    names = [f"layers.{index}" for index in range(6)]
    ahead = [2, 2, 1, 2, 1, 0]
    units = [
        UnitPlan(modules=(name,), forward_prefetch=tuple(names[index + 1 : index + 1 + ahead[index]]))
        for index, name in enumerate(names)
    ]
    rows = fold_units(decide_units(*units, UnitPlan(modules=("",))))
    assert [row.name for row in rows] == ["layers.0-1,3-5", "layers.2", "(root)"]


def test_blocks_grouped_in_pairs():
    units = [UnitPlan(modules=(f"layers.{index}", f"layers.{index + 1}")) for index in range(0, 8, 2)]
    rows = fold_units(decide_units(*units, UnitPlan(modules=("",))))
    assert rows[0].name == "layers.0-7 (2 per unit)"
    assert rows[0].num_units == 4


def test_a_unit_inside_a_checkpointed_block_is_checkpointed():
    activations = (ActivationPlan(module="layers.0", policy=ActivationPolicy.FULL),)
    units = (UnitPlan(modules=("layers.0.attn",)), UnitPlan(modules=("layers.10.attn",)), UnitPlan(modules=("",)))
    rows = fold_units(decide_units(*units, activations=activations))
    assert [row.traits.activations for row in rows] == ["checkpoint", "keep", "keep"]


def test_strips_only_where_blocks_differ(decide):
    assert decision_strips(decide(checkpointed=tuple(range(32)))) == ()
    (strip,) = decision_strips(decide(checkpointed=(0, 2)))
    assert (strip.name, strip.decision) == ("model.layers.0-31", "checkpoint")
    assert [index for index, mark in enumerate(strip.marks) if mark] == [0, 2]


def test_integer_reshard_is_named():
    rows = fold_units(
        decide_units(UnitPlan(modules=("layers.0",), reshard_after_forward=4), UnitPlan(modules=("",)))
    )
    assert rows[0].traits.reshard == "reshard to 4"


def test_a_mesh_of_its_own_is_named_and_splits_rows():
    pairs = MeshPlan(replicate=4, shard=2)
    units = (*(UnitPlan(modules=(f"layers.{i}",), mesh=pairs if i > 1 else None) for i in range(4)),)
    rows = fold_units(decide_units(*units, UnitPlan(modules=("",))))
    assert [(row.name, row.traits.mesh) for row in rows] == [
        ("layers.0-1", ""),
        ("layers.2-3", "4 replicas x 2-way shard"),
        ("(root)", ""),
    ]

import pytest

from api.cli.by_hand import ByHand, block_paths
from planner.schema import InconsistentRequest, InvalidDocument


def test_blocks_are_found_in_forward_order(request_document):
    paths = block_paths(request_document)
    assert (len(paths), paths[0], paths[-1]) == (32, "model.layers.0", "model.layers.31")


def test_a_plain_script_by_hand(request_document):
    decisions = ByHand().decisions(request_document)
    assert (decisions.mesh.replicate, decisions.mesh.shard, decisions.num_micro_batches) == (1, 8, 8)
    assert len(decisions.units) == 33
    assert decisions.units[-1].modules == ("",)
    assert all(unit.reshard_after_forward is True for unit in decisions.units[:-1])
    assert decisions.activations == ()


def test_every_setting_reaches_the_decisions(request_document):
    by_hand = ByHand(
        shard=4,
        reshard="2",
        checkpoint=("model.layers.1*",),
        prefetch=2,
        units=("model.norm, lm_head",),
        reduce_buffers=3,
    )
    decisions = by_hand.decisions(request_document)
    assert (decisions.mesh.replicate, decisions.mesh.shard) == (2, 4)
    assert decisions.units[0].reshard_after_forward == 2
    assert decisions.units[0].forward_prefetch == ("model.layers.1", "model.layers.2")
    assert decisions.units[2].backward_prefetch == ("model.layers.1", "model.layers.0")
    assert decisions.units[31].forward_prefetch == ()
    assert decisions.units[32].modules == ("model.norm", "lm_head")
    assert [plan.module for plan in decisions.activations] == [
        f"model.layers.{index}" for index in (1, *range(10, 20))
    ]
    assert decisions.runtime.reduce_scatter_max_input_buffers == 3


def test_full_and_none(request_document):
    assert len(ByHand(checkpoint=("full",)).decisions(request_document).activations) == 32
    assert ByHand(checkpoint=("none",)).decisions(request_document).activations == ()


@pytest.mark.parametrize(
    ("by_hand", "error", "said"),
    [
        (ByHand(shard=3), InconsistentRequest, "--shard 3 must divide the 8 ranks"),
        (ByHand(reshard="maybe"), InvalidDocument, "--reshard 'maybe'"),
        (ByHand(reshard="0"), InvalidDocument, "--reshard '0'"),
        (ByHand(checkpoint=("blocks.*",)), InconsistentRequest, "matches no block; blocks are model.layers.0"),
    ],
)
def test_what_cannot_be_is_refused(request_document, by_hand, error, said):
    with pytest.raises(error) as caught:
        by_hand.decisions(request_document)
    assert said in str(caught.value)


def test_a_batch_that_does_not_divide_is_refused(request_document):
    workload = request_document.workload.model_copy(update={"global_batch": 60})
    with pytest.raises(InconsistentRequest, match="--global-batch 60 must be a multiple"):
        ByHand().decisions(request_document.model_copy(update={"workload": workload}))

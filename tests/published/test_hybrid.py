"""All-reduce buffers of hybrid sharding, and retained reduce-scatter inputs."""

import pytest

from planner.program.events import Phase
from planner.schema import DType, MemoryCategory, Precision, RuntimeKnobs
from tests.planner.factories import CallSpec, tiny_model
from tests.published.steps import BLOCK_BYTES, GIB, Step, block_model, step

NUM_UNITS, ELEMENTS, SHARD = 32, 200_000_000, 8
BF16_FP32 = Precision(param_dtype=DType.BFLOAT16, reduce_dtype=DType.FLOAT32)
REDUCED, GRADIENTS = MemoryCategory.REDUCE_BUFFERS, MemoryCategory.GRADIENTS


def units_stored_in(dtype: DType, replicate: int) -> Step:
    block = CallSpec(shapes=((ELEMENTS,),), backward_live=[(0, 1)])
    model = tiny_model(NUM_UNITS, block=block, embedding=None, norm=None, head=None, loss=None, dtype=dtype)
    return step(model, SHARD * replicate, replicate=replicate, precision=BF16_FP32)


def test_all_reduce_buffers_add_up_over_the_units() -> None:
    """Stored in bf16, reduced in float32: 100e6 B a unit, 2.980 GiB in the end (reported case 8; pytorch#180900).

    Each unit holds the buffer that it all-reduced until the final callback, beside its sharded gradient.
    """
    found = units_stored_in(DType.BFLOAT16, replicate=2)
    held = NUM_UNITS * ELEMENTS // SHARD * 4
    assert ELEMENTS // SHARD * 4 == 100_000_000
    assert round(held / GIB, 3) == 2.980
    retained_input = ELEMENTS * 4
    last = found.points[Phase.BACKWARD][-1].by_category_bytes
    assert last[REDUCED] == held + retained_input
    assert last[GRADIENTS] == NUM_UNITS * ELEMENTS // SHARD * 2


def test_without_a_cast_the_buffer_is_the_gradient() -> None:
    """Stored in float32: nothing beyond the gradients (reported case 8)."""
    last = units_stored_in(DType.FLOAT32, replicate=2).points[Phase.BACKWARD][-1].by_category_bytes
    assert last[REDUCED] == ELEMENTS * 4  # the retained input
    assert last[GRADIENTS] == NUM_UNITS * ELEMENTS // SHARD * 4


def test_one_dimension_keeps_one_buffer() -> None:
    """A 1-D mesh casts each buffer and frees it before the next reduction (reported case 8)."""
    found = units_stored_in(DType.BFLOAT16, replicate=1)
    retained_input, one_output = ELEMENTS * 4, ELEMENTS // SHARD * 4
    assert found.points[Phase.BACKWARD][-1].by_category_bytes[REDUCED] == retained_input + one_output


@pytest.mark.parametrize("buffers", [1, 2, 3, 6])
def test_reduce_inputs_are_retained_first_in_first_out(buffers: int) -> None:
    """`set_reduce_scatter_max_input_buffers(K)`: K inputs in flight; the oldest is waited for (torch 2.13)."""
    found = step(block_model(8), 4, runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=buffers))
    assert found.most(Phase.BACKWARD, REDUCED) == buffers * BLOCK_BYTES


def test_more_buffers_than_units_retain_all_of_them() -> None:
    """K beyond the number of units keeps every input to the final callback (torch 2.13)."""
    found = step(block_model(3), 4, runtime=RuntimeKnobs(reduce_scatter_max_input_buffers=9))
    assert found.most(Phase.BACKWARD, REDUCED) == (3 + 1) * BLOCK_BYTES

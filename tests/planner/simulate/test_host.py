"""Host memory of offloaded units."""

from planner.program.sizes import unit_bytes
from planner.program.units import Unit
from planner.schema import Parameter, Precision
from planner.simulate.host import HostMemory

UNIT = Unit(
    modules=("layers.0",),
    parameters=(("a", Parameter(name="a", shape=(12, 100))), ("b", Parameter(name="b", shape=(5,)))),
)
PRECISION = Precision(param_dtype=None, reduce_dtype=None)


def memory(*, with_gradient=("a", "b"), with_zeros=(), accumulates=False, optimizer_bytes=0):
    size = unit_bytes(UNIT, shard=4, precision=PRECISION, with_gradient=with_gradient, with_zeros=with_zeros)
    return HostMemory.of([(size, accumulates)], optimizer_bytes=optimizer_bytes)


def test_shards_gradients_and_state():
    # 3 x 100 and 2 elements of four bytes, twice; Adam's moments.
    assert memory(optimizer_bytes=2 * 1_208).total_bytes == 2 * 1_208 + 2 * 1_208
    assert memory(with_gradient=("b",)).total_bytes == 1_208 + 8


def test_pinned_tensors_are_rounded_one_by_one_and_state_is_not():
    assert memory(optimizer_bytes=2 * 1_208).reserved_bytes == 2 * (2_048 + 8) + 2 * 1_208


def test_gradients_are_added_one_at_a_time():
    assert memory(accumulates=True).total_bytes - memory().total_bytes == 1_200
    assert memory(accumulates=True).reserved_bytes - memory().reserved_bytes == 1_200


def test_gradients_of_zeros_come_to_the_host_too():
    assert memory(with_gradient=("a",), with_zeros=("a", "b")).total_bytes == 2 * 1_208


def test_no_unit_takes_nothing():
    nothing = HostMemory.of([], optimizer_bytes=0)
    assert nothing == HostMemory()
    assert (nothing.total_bytes, nothing.reserved_bytes) == (0, 0)

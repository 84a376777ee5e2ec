import pytest
import torch

from runtime_client.optimizers import Adam8bit
from runtime_client.optimizers.adam8bit import dequantize, dynamic_map, quantize

CPU = torch.device("cpu")


def test_the_map_has_a_value_for_each_code() -> None:
    """Signed: 127 magnitudes and their negatives, 0 and 1; unsigned: 254 magnitudes, 0 and 1."""
    signed, unsigned = (dynamic_map(signed=sign, device=CPU) for sign in (True, False))
    assert signed.numel() == unsigned.numel() == 256
    assert signed.unique().numel() == unsigned.unique().numel() == 256
    assert signed.min() > -1.0
    assert signed.max() == unsigned.max() == 1.0
    assert unsigned.min() == 0.0
    # decade 10^-6 has one interval, [0.1, 1], with midpoint 0.55; unsigned two, with midpoints 0.325 and 0.775
    assert signed[signed > 0].min().item() == pytest.approx(0.55e-6)
    assert unsigned[1:3].tolist() == pytest.approx([0.325e-6, 0.775e-6])


def test_every_value_of_the_map_comes_back() -> None:
    for signed in (True, False):
        values = dynamic_map(signed=signed, device=CPU)
        codes, scales = quantize(values * 3.0, signed=signed)
        assert codes.tolist() == list(range(256))
        assert scales.tolist() == [3.0]
        assert torch.equal(dequantize(codes, scales, signed=signed), values * 3.0)


def test_blocks_have_scales_of_their_own_and_the_last_may_be_partial() -> None:
    values = torch.cat([torch.full((256,), 1e-5), torch.full((10,), -2.0)])
    codes, scales = quantize(values, signed=True)
    assert (codes.numel(), scales.tolist()) == (266, [pytest.approx(1e-5), 2.0])
    assert dequantize(codes, scales, signed=True)[:256].tolist() == pytest.approx([1e-5] * 256)


def test_zeros_stay_zero() -> None:
    codes, scales = quantize(torch.zeros(300), signed=True)
    assert dequantize(codes, scales, signed=True).abs().max() == 0.0
    assert scales.tolist() == [0.0, 0.0]


def trained(make: type[torch.optim.Optimizer], size: int, steps: int) -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, size))
    optimizer = make([parameter], lr=0.01, weight_decay=0.1)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        parameter.grad = torch.randn(size, generator=generator)
        optimizer.step()
    return parameter


def test_codes_are_those_of_torchao() -> None:
    """Of a whole parameter; torchao computes the update in another order, which shows in the last bits."""
    eight_bit = pytest.importorskip("torchao.optim").AdamW8bit
    values = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    ours, theirs = (torch.nn.Parameter(values.clone()) for _ in range(2))
    mine, other = Adam8bit([ours], lr=1e-3), eight_bit([theirs], lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(5):
            gradient = torch.randn(64, 128, generator=generator)
            ours.grad, theirs.grad = gradient.clone(), gradient.clone()
            mine.step()
            other.step()
            for name in ("exp_avg", "exp_avg_sq"):
                state = other.state[theirs][name]
                assert torch.equal(mine.state[ours][f"{name}_codes"].view(-1), state.codes.view(-1))
                assert torch.allclose(mine.state[ours][f"{name}_scales"], state.scale, rtol=1e-6, atol=0)
            assert torch.allclose(ours, theirs, rtol=0, atol=5e-6)


def test_small_parameters_have_the_moments_of_adamw() -> None:
    assert torch.allclose(trained(Adam8bit, 4095, 5), trained(torch.optim.AdamW, 4095, 5), atol=1e-6)


def test_large_ones_come_close() -> None:
    """The first step sees unquantized moments; later ones differ by the resolution of the codes."""
    assert torch.allclose(trained(Adam8bit, 4096, 1), trained(torch.optim.AdamW, 4096, 1), atol=1e-6)
    difference = (trained(Adam8bit, 4096, 5) - trained(torch.optim.AdamW, 4096, 5)).abs()
    assert 0.0 < difference.mean() < 2e-3

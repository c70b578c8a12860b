"""The kernel that inverts mixtures, on a GPU or in the interpreter of Triton.

The interpreter is asked for by TRITON_INTERPRET=1 in the environment. Triton compiles without a
GPU, and refuses some of what the interpreter takes.
"""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

from mintnet.bijections import mixture_kernel
from mintnet.bijections.logistics import Mixture
from mintnet.bijections.mixture_kernel import ROWS, can_invert, invert_on_gpu

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda:0" if ON_GPU else "cpu"
runs = pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="needs a GPU or the interpreter")


def _mixtures(
    shape: tuple[int, ...], components: int, spread: float, dtype: torch.dtype
) -> Mixture:
    """Parameters as the network gives them: components not on the last axis of the memory."""
    raw = torch.randn(*shape[:-1], 3, components, shape[-1], dtype=torch.float64)
    weight, slope, offset = (part.mT for part in raw.unbind(-3))
    centre = torch.randn(shape, dtype=torch.float64)
    t = torch.rand(shape[0], *(1,) * len(shape[1:]))
    parts = (3 * weight).log_softmax(-1), (spread * slope).clamp(max=9.0), 4 * offset, centre, t
    return Mixture(*(part.to(DEVICE, dtype) for part in parts))


def _check(mixture: Mixture, y: Tensor) -> None:
    """f(x) = y up to rounding, and x is that of `Mixture.invert` in float64."""
    x, eps = invert_on_gpu(mixture, y), torch.finfo(y.dtype).eps
    assert x.shape == y.shape and x.dtype == y.dtype and bool(x.isfinite().all())
    exact = Mixture(*(part.double().cpu() for part in mixture))
    found, target = x.double().cpu(), y.double().cpu()
    value, slope = exact.value_and_slope(found)
    # What is rounded: y, m and log π in the value, and x and ℓ, which the slope multiplies.
    terms = 1 + target.abs() + exact.offset.abs().amax(-1) + exact.log_weight.abs().amax(-1)
    places = found.abs() + exact.centre.abs()
    allowed = 8 * eps * (terms + slope * places)
    assert float(((value - target).abs() / allowed).max()) <= 1
    expected = exact.invert(target)
    least = torch.minimum(slope, exact.value_and_slope(expected)[1])
    assert float(((found - expected).abs() / (2 * allowed / least + 8 * eps * places)).max()) <= 1


@runs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("spread", [0.5, 3.0])
@pytest.mark.parametrize("components", [1, 5, 8])
def test_it_inverts(components: int, spread: float, size: float, dtype: torch.dtype) -> None:
    mixture = _mixtures((2, 3 * ROWS + 5), components, spread, dtype)
    _check(mixture, (size * torch.randn(2, 3 * ROWS + 5)).to(DEVICE, dtype))


@runs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 4, 9)], ids=str)
def test_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    mixture, y = _mixtures(shape, 3, 1.0, dtype), torch.randn(shape).to(DEVICE, dtype)
    _check(mixture, y)
    assert invert_on_gpu(mixture, y.expand(1, *shape)[:0]).shape == (0, *shape)


@runs
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0.0, 50.0])
@pytest.mark.parametrize("equal", [True, False])
def test_extreme_mixtures(equal: bool, offset: float, dtype: torch.dtype) -> None:
    """Components of width exp(−9), alike (the bracket is a point) or far from each other."""
    offsets = torch.full((64, 3), offset) if equal else offset * torch.linspace(-1, 1, 3)
    parts = (
        torch.zeros(64, 3).log_softmax(-1),
        torch.full((64, 3), 9.0),
        offsets.expand(64, 3),
        torch.linspace(-1, 1, 64),
        torch.tensor(1e-3),
    )
    mixture = Mixture(*(part.to(DEVICE, dtype) for part in parts))
    for y in (torch.zeros(64), torch.linspace(-60, 60, 64), torch.linspace(-1e6, 1e6, 64)):
        _check(mixture, y.to(DEVICE, dtype))


@runs
def test_nan_stays_with_its_entry() -> None:
    mixture, y = _mixtures((2, 40), 4, 1.0, torch.float32), torch.randn(2, 40).to(DEVICE)
    expected = invert_on_gpu(mixture, y)
    y[0, 3] = float("nan")
    mixture.offset[1, 5, 2] = float("nan")
    found = invert_on_gpu(mixture, y)
    assert found.isnan().nonzero().tolist() == [[0, 3], [1, 5]]
    assert torch.equal(found[~found.isnan()], expected[~found.isnan()])


@runs
def test_an_entry_has_the_same_bits_in_every_batch() -> None:
    mixture, y = _mixtures((1, 100), 5, 1.0, torch.float32), torch.randn(1, 100).to(DEVICE)
    x = invert_on_gpu(mixture, y)
    some = Mixture(*(part[:, 37:90] for part in mixture[:4]), mixture.t)
    assert torch.equal(invert_on_gpu(some, y[:, 37:90]), x[:, 37:90])


@runs
def test_where_it_does_not_build(monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    kind = 3, torch.float32, torch.device(DEVICE)
    builds = mixture_kernel._builds.__wrapped__
    assert builds(*kind) and not caplog.records
    monkeypatch.setattr(mixture_kernel, "_kernel", None)
    assert not builds(*kind)
    assert "without Triton" in caplog.text


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_a_cuda_graph_holds_it() -> None:
    mixture, y = _mixtures((3, 50), 5, 1.0, torch.float32), torch.randn(3, 50).to(DEVICE)
    assert can_invert(mixture, y) and not can_invert(mixture, y.double())
    assert not can_invert(mixture, y.clone().requires_grad_())
    assert torch.equal(mixture.invert(y), invert_on_gpu(mixture, y))
    graph, held = torch.cuda.CUDAGraph(), y.clone()
    with torch.cuda.graph(graph):
        found = mixture.invert(held)
    held.copy_(y.flip(1))
    graph.replay()
    torch.testing.assert_close(found, invert_on_gpu(mixture, held))


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(("kind", "eps"), [("fp32", 2.0**-23), ("fp64", 2.0**-52)])
@pytest.mark.parametrize("components", [1, 5])
def test_it_compiles(components: int, kind: str, eps: float) -> None:
    padded = triton.next_power_of_2(components)
    constants = {"eps": eps, "components": components, "padded": padded, "rows": ROWS}
    signature = {name: f"*{kind}" for name in ("parts", "singles", "out")} | {"count": "i32"}
    signature |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(mixture_kernel._kernel, signature, constants)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 1})
    assert compiled.metadata.shared == 0  # each thread has an entry, and asks no other

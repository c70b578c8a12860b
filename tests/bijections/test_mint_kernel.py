"""The kernel that solves a level of a Mint layer, on a GPU or in the interpreter of Triton."""

from __future__ import annotations

import os

import pytest
import torch

from mintnet import MintLayer, Wavefront
from mintnet.bijections import mint_kernel
from mintnet.bijections.mint_kernel import ROWS, MintLevels, solve_on_gpu
from mintnet.solvers.levels import walk_levels
from registry import normal_mint

triton = pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available() and not INTERPRETED
DEVICE = "cuda:0" if ON_GPU else "cpu"
runs = pytest.mark.skipif(not ON_GPU and not INTERPRETED, reason="needs a GPU or the interpreter")


@runs
@torch.no_grad()
@pytest.mark.parametrize("copies", [1, 5, 48])
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e4])
def test_it_solves(copies: int, size: float) -> None:
    generator = torch.Generator().manual_seed(copies)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    v = drawn(2, copies, 3 * ROWS + 5), drawn(2, copies, 3 * ROWS + 5)
    # d³ d² d¹ ≥ 0, as Eq. 4 has it
    d1, d3 = drawn(2, copies, 1), drawn(2, 1, copies)
    d2 = drawn(2, copies, copies).abs() * d1.mT.sign() * d3.mT.sign()
    t, target = 0.01 + drawn(2, v[0].shape[2]).abs(), size * drawn(2, v[0].shape[2])
    given = [part.to(DEVICE) for part in (*v, d1, d2, d3, t, target)]
    x = solve_on_gpu((given[0], given[1]), (given[2], given[3], given[4]), given[5], given[6])
    x, (v1, v2) = x.double().cpu(), (part.double() for part in v)
    h2 = torch.nn.functional.elu(v2 + d2.double() @ torch.nn.functional.elu(v1 + d1 * x[:, None]))
    terms = d3.double().mT * h2
    unit = (t * x).abs() + terms.abs().sum(1) + target.abs()
    assert float(((t * x + terms.sum(1) - target).abs() / unit).max()) < 2e-6


@runs
@torch.no_grad()
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_walk_is_the_inverse(channels: int, upper: bool) -> None:
    layer: MintLayer = normal_mint(channels, 7, (6, 5), upper, 3, std=0.2).to(DEVICE)
    x = torch.randn(4, channels, 6, 5, device=DEVICE)
    z = layer(x)[0]
    found, _ = walk_levels(MintLevels(layer.evaluator(), layer.ordering), z)
    torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-4)
    if ON_GPU:
        assert layer.levels(z) is not None and layer.levels(z.double()) is None
        assert bool(layer.solve(z, Wavefront()).converged.all())


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize("copies", [5, 85])
def test_it_compiles(copies: int) -> None:
    padded = max(16, triton.next_power_of_2(copies))
    constants = {"eps": 2.0**-23, "copies": copies, "padded": padded, "rows": ROWS}
    arrays = ("v1", "v2", "d1", "d2", "d3", "t", "target", "out")
    signature = dict.fromkeys(arrays, "*fp32") | {"count": "i32"}
    signature |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(mint_kernel._kernel, signature, constants)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": padded // 8})
    assert compiled.metadata.shared <= 227 * 1024

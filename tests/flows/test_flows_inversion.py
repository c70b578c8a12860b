"""How many steps and fronts the layers of other flows need."""

import pytest
import torch
from torch import nn

from mintnet import MAF, Auto, EmergingFactor, FixedPoint, MaCowLayer, NICECoupling, Wavefront, iaf
from mintnet import RealNVPCoupling as RealNVP
from mintnet.bijections.triangular import Composed
from mintnet.calculus import Function, HalfConditioner, Tanh
from mintnet.solvers import StructureError
from registry import away_from_zero

both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
both_ways = pytest.mark.parametrize("upper", [False, True])
COUPLINGS = {
    "nice-checkerboard": lambda shape: NICECoupling(shape, "checkerboard"),
    "nice-channel": lambda shape: NICECoupling(shape, "channel", upper=True),
    "real-nvp-checkerboard": lambda shape: RealNVP(shape, "checkerboard", upper=True),
    "real-nvp-channel": lambda shape: RealNVP(shape, "channel"),
    "glow": lambda shape: RealNVP(shape, "channel", scale="sigmoid"),
}


def _double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@both_dtypes
@pytest.mark.parametrize("shape", [(64,), (4, 8, 8)], ids=str)
@pytest.mark.parametrize("make", COUPLINGS.values(), ids=COUPLINGS)
def test_couplings_take_two_steps_of_algorithm_1(make, shape, dtype) -> None:
    layer = away_from_zero(make(shape), 1, 2.0).to(dtype)
    z = 3 * torch.randn(4, *shape, dtype=dtype)
    solution = layer.solve(z, FixedPoint(step=1.0, max_steps=2))
    assert bool(solution.converged.all()), solution.message
    assert float(solution.residual.max()) <= 32 * torch.finfo(dtype).eps
    assert int(layer.solve(z, Auto()).evaluations.max()) <= 4  # to see that nothing is left


@both_dtypes
@both_ways
def test_an_emerging_factor_of_3_32_32(upper: bool, dtype) -> None:
    factor = away_from_zero(EmergingFactor(3, (32, 32), upper=upper), 1, 0.5).to(dtype)
    x = torch.randn(2, 3, 32, 32, dtype=dtype)
    solution = factor.solve(factor(x)[0].detach(), Wavefront())
    assert int(solution.evaluations.max()) <= 96  # 94 fronts
    assert bool(solution.converged.all()), solution.message
    assert float((solution.value - x).abs().max()) <= 500 * torch.finfo(dtype).eps


@pytest.mark.parametrize("kernel", [1, 3, 5])
@both_ways
def test_the_wavefront_equals_the_dense_inverse(kernel: int, upper: bool) -> None:
    factor = away_from_zero(EmergingFactor(2, (3, 4), kernel, upper), 1).double()
    basis, z = torch.eye(24, dtype=torch.float64).reshape(24, 2, 3, 4), _double(5, 2, 3, 4)
    with torch.no_grad():
        offset = factor(torch.zeros_like(z[:1]))[0]
        matrix = (factor(basis)[0] - offset).reshape(24, 24).T
        expected = torch.linalg.solve(matrix, (z - offset).reshape(5, 24).T).T.reshape(z.shape)
    torch.testing.assert_close(factor.solve(z, Wavefront()).value, expected, rtol=1e-10, atol=1e-10)


def test_macow_takes_few_evaluations_a_row() -> None:
    layer = away_from_zero(MaCowLayer((2, 9, 5), "up", hidden=6), 1).double()
    z = layer(_double(3, 2, 9, 5))[0].detach()
    solution = layer.solve(z, Wavefront())
    assert bool(solution.converged.all()) and solution.steps.tolist() == [9] * 3
    assert int(solution.evaluations.max()) <= 4 * 9
    assert 3 < int(layer.solve(z, FixedPoint(step=1.0)).steps.max()) <= 9 + 1


@both_ways
def test_maf_is_solved_in_at_most_its_levels(upper: bool) -> None:
    maf = away_from_zero(MAF((20,), 2, upper=upper), 1, 2.0).double()
    solution = maf.solve(maf(_double(3, 20))[0].detach(), FixedPoint(step=1.0))
    assert bool(solution.converged.all()) and int(solution.steps.max()) <= 20 + 1


def test_iaf_samples_with_one_evaluation() -> None:
    layer, z = away_from_zero(iaf((6,), 2), 3).double(), _double(4, 6)
    torch.testing.assert_close(layer.inverse(z), layer.inner(z)[0])


class TwoNetworks(Function):
    """A coupling inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = HalfConditioner(nn.Linear(6, 6), "channel")
        self.second = HalfConditioner(nn.Linear(6, 6), "channel")

    def forward(self, x):
        y = 2.0 * x + Tanh()(x) + x.conditioned(self.first)[0]
        return y + y.conditioned(self.second)[0]


class NetworkAndMasks(Function):
    """A coupling and an autoregressive layer side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.maf = HalfConditioner(nn.Linear(6, 6), "channel"), MAF((6,))

    def forward(self, x):
        return self.maf.function(x) + x.conditioned(self.network)[0]


def test_networks_of_networks_are_walked_and_what_cannot_be_is_told() -> None:
    for function, solver in ((TwoNetworks(), Wavefront()), (NetworkAndMasks(), None)):
        bijection, x = Composed(away_from_zero(function.double(), 1), (6,)), _double(3, 6)
        z = bijection(x)[0].detach()
        torch.testing.assert_close(bijection.solve(z, solver).value, x, rtol=1e-9, atol=1e-9)
    with pytest.raises(StructureError, match="both masked linear maps and networks"):
        bijection.solve(z, Wavefront())

"""What verified states: of extreme questions, each is answered rightly or refused."""

import copy

import pytest
import torch
from torch import nn

import mintnet as mn
from mintnet import calculus as ca
from mintnet.bijections.chain import Inverse
from mintnet.solvers import Solver
from mintnet.solvers.verified import InFloat64
from registry import trained_flow

SOLVERS = [mn.Auto(), mn.FixedPoint(), mn.Wavefront(), mn.Bisection()]
by_solver = pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)


def _steep() -> mn.Bijection:
    linear = ca.MaskedLinear(2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.0], [1e10, 1.0]]))
        linear.bias.zero_()
    return mn.Composed(linear, (2,))


@by_solver
@pytest.mark.parametrize(
    ("make", "z"),
    [
        (lambda: mn.Composed(ca.Softplus() @ ca.Identity(), (1,)), [0.0]),
        (lambda: mn.Composed(ca.Tanh() @ ca.Identity(), (1,)), [1.000004]),
        (lambda: mn.Composed(ca.Softplus() @ ca.Identity(), (2,)), [-1.0, 1e6]),
    ],
    ids=["softplus-0", "tanh-1", "hidden"],
)
def test_targets_outside_of_the_image_are_refused_at_once(make, z, solver, raises_with) -> None:
    bijection, target = make(), torch.tensor([z])
    assert bijection.solve(target, solver).status.tolist() == [mn.Status.NO_PREIMAGE]
    with raises_with(mn.InversionError, "Entry (0,) of sample 0", "lie between"):
        bijection.inverse(target, solver)


@pytest.mark.parametrize(
    "after", [mn.Flip(), mn.ActNorm(2), mn.Composed(2.0 * ca.Identity(), (2, 1, 1))]
)
def test_parts_of_chains_look_at_their_own_images(after: mn.Bijection, raises_with) -> None:
    chain = mn.Chain(mn.Composed(ca.Softplus() @ ca.Identity(), (2, 1, 1)), after).eval()
    z = torch.tensor([[1e6, -1.0], [-1.0, 1e6], [3.0, 2.0]]).reshape(3, 2, 1, 1)
    assert chain.solve(z).status.tolist() == [mn.Status.NO_PREIMAGE] * 2 + [mn.Status.CONVERGED]
    with raises_with(mn.InversionError, "of sample 0", "lie between"):
        chain.inverse(z)


def test_weights_that_are_not_finite_are_refused_at_once() -> None:
    for layer in (mn.MintLayer(1, 2, (16, 16)), mn.ActNorm(1), mn.IResNetBlock((1, 2, 2), 4, 0.9)):
        list(layer.parameters())[-1].data.view(-1)[-1] = float("nan")
        with pytest.raises(mn.NotProvedError, match="NaN or infinite"):
            layer.eval().solve(torch.zeros(1, *(layer.event_shape or (1, 2, 2))))


@by_solver
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-4, 1e-8, 1e-30, 1e-43, 0.0])
def test_small_targets_are_measured_by_their_own_scale(solver: Solver, scale: float) -> None:
    layer = mn.MintLayer(1, 2, (2, 2))
    with torch.no_grad():
        layer.bias3.fill_(1e3)
    for bijection, shape in ((layer, (1, 2, 2)), (_steep(), (2,))):
        z = scale * torch.randn(4, *shape)
        solution = bijection.solve(z, solver)
        with torch.no_grad():
            image = copy.deepcopy(bijection).double().value(solution.value.double())
        gap = (image - z.double()).abs().flatten(1).amax(1)
        unit = solution.unit.double()
        ok = solution.converged
        if scale:
            torch.testing.assert_close(solution.unit, z.abs().flatten(1).amax(1))
        else:
            assert bool(ok.all()), "zero is a fair target"
        assert bool((gap[ok] <= 5.01e-6 * unit[ok]).all())
        found = solution.absolute_residual[ok].double()
        torch.testing.assert_close(found, gap[ok], rtol=1e-3, atol=1e-30)


def test_what_float32_does_not_reach_is_solved_in_float64() -> None:
    steep = mn.Composed(1e4 * ca.Softplus() @ ca.Identity(), (1,))
    solution = steep.solve(torch.tensor([[1e-2], [1e-9]]))
    assert bool(solution.converged.all()) and solution.value.dtype == torch.float32
    coarse = steep.solve(torch.tensor([[1e-2]]), mn.FixedPoint(max_steps=1, tolerance=0.5))
    assert int(coarse.steps) <= 1, "who chooses a tolerance gets no second solve"


class Mean(nn.Module):
    """A network that looks at other samples, in evaluation mode too."""

    def forward(self, x):
        return x.mean((0, 2, 3), keepdim=True).expand(len(x), 2, 4, 4)


def test_what_depends_on_other_samples_is_refused(raises_with) -> None:
    norm = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    drop = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(4, 2, 1))
    z = torch.randn(4, 1, 4, 4)
    for network, words in ((norm, ("BatchNorm2d", "other samples")), (drop, ("Dropout", "chance"))):
        coupling = mn.RealNVPCoupling((1, 4, 4), network=network)
        assert coupling(z)[0].shape == z.shape and network[1].training
        assert coupling.eval().inverse(z).shape == z.shape
        network.train()
        with raises_with(ValueError, *words, ".eval()"):
            coupling.inverse(z)
    with pytest.raises((ValueError, mn.InversionError)):
        mn.RealNVPCoupling((1, 4, 4), network=Mean()).eval().inverse(z)


@pytest.mark.parametrize("end", [0, 1])
def test_logit_is_finite_where_it_accepts(end: int, raises_with) -> None:
    logit = mn.Logit(0.05)
    for dtype in (torch.float32, torch.float64):
        y, log_det = logit(torch.full((1, 1), logit.domain_of(dtype)[end], dtype=dtype))
        assert bool(y.isfinite().all()) and bool(log_det.isfinite().all())
    with raises_with(ValueError, "expects entries in"):
        logit(torch.full((1, 1), logit.domain[end]))


@torch.no_grad()
def test_float64_inside_is_that_of_a_float64_copy() -> None:
    net = mn.MintNet(mn.models.MintNetConfig((1, 4, 4), (1, 1), (4, 2)))
    x = torch.randn(2, 1, 4, 4)
    with InFloat64():
        inside = net.value(x)
    assert torch.equal(inside, copy.deepcopy(net).double().value(x.double()))
    assert net.value(x).dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("scale", [1e-2, 1e-4, 1e-6])
def test_small_targets_of_a_network_are_refined_in_float64(scale: float, raises_with) -> None:
    net, z = trained_flow().net, scale * torch.randn(1, 16, 7, 7)
    found = net.solve(z)
    assert int(found.evaluations) < 900, "float64 begins where float32 ended, a few steps a layer"
    if scale == 1e-2:
        assert bool(found.converged)
        return
    assert found.status.tolist() == [mn.Status.INACCURATE]
    if scale == 1e-4:  # a solution in float64 there is, but it cannot be rounded
        double = copy.deepcopy(net).double()
        exact = double.solve(z.double())
        assert bool(exact.converged)
        assert double.value(exact.value.float().double()).sub(z).abs().max() > 1e-3 * z.abs().max()
    with raises_with(mn.InversionError, "rounding", "in float64, with layer.double()"):
        net.inverse(z)


@pytest.mark.parametrize(("factor", "offset"), [(2.0, -1e6), (-0.3, 7.7e3), (1e3, 3e7)])
def test_entries_that_float32_cannot_hold_are_refused_with_advice(
    factor: float, offset: float, raises_with
) -> None:
    bijection = mn.Composed(factor * ca.Identity() + offset, (1,))
    z = torch.tensor([[1e-4]])
    with raises_with(mn.InversionError, "in float64", "layer.double()", "tolerance"):
        bijection.inverse(z)
    assert bijection.inverse(0 * z).isfinite().all(), "z = 0 is measured by f(0)"
    assert bool(bijection.solve(z.double(), mn.FixedPoint(tolerance=1e-3)).converged)


class Wrong(mn.AnalyticBijection):
    """y = 2x + 1, with an inverse that takes the two back in the wrong order."""

    def transform(self, x):
        return 2 * x + 1, x.new_zeros(len(x))

    def invert(self, z):
        return z / 2 - 1


def test_a_wrong_formula_for_the_inverse_is_called_that(raises_with) -> None:
    for z in (torch.randn(3, 2), torch.randn(3, 2).double()):
        assert Wrong().solve(z).status.tolist() == [mn.Status.DISAGREES] * 3
        with raises_with(mn.InversionError, "`invert`", "`transform`", "residual", "opposite"):
            mn.Chain(mn.Flip(), Wrong()).inverse(z.reshape(3, 2, 1, 1))
    saturated = torch.full((1, 1), 20.0)  # the right formula, but x rounds to its domain's end
    assert mn.Logit(0.05).solve(saturated).status.tolist() == [mn.Status.INACCURATE]


class Ahead(ca.Conditioner):
    """Any function of the entry before."""

    ordering, outputs = ca.LOWER, 1

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, data):
        return (torch.cat([torch.zeros_like(data[:, :1]), self.function(data[:, :-1])], 1),)

    def levels(self, shape):
        return torch.arange(shape[0])


@pytest.mark.parametrize("function", [torch.log, torch.rsqrt, lambda x: 0 * x / 0, lambda x: x / 0])
def test_nothing_is_proved_with_networks_that_compute_nan(function) -> None:
    network = Ahead(function)
    bend = ca.Sigmoid()
    proof = ca.certify(lambda x: 2.0 * x + bend(x.conditioned(network)[0]), (3,))
    assert not proof.injective and "NaN or infinite for some inputs" in proof.message


@by_solver
def test_infinite_outputs_of_networks_are_not_squashed(solver: Solver, raises_with) -> None:
    """σ(∞) = 1 would hide where the network overflows, which random inputs do not show."""
    network, bend = Ahead(lambda x: (x / 200).clamp(min=1.0) ** 700), ca.Sigmoid()
    hidden = mn.Composed(lambda x: 2.0 * x + bend(x.conditioned(network)[0]), (3,)).double()
    near, far = torch.ones(2, 3).double(), torch.tensor([[1.0, 2, 3], [1, 900, 3]]).double()
    assert hidden.solve(hidden(near)[0].detach(), solver).converged.all()
    with raises_with(ValueError, "not finite for 1 of 2", "sample 1"):
        hidden(far)
    assert hidden.solve(2 * far, solver).converged.tolist() == [True, False]


def test_the_inverse_of_an_inverse_is_the_bijection() -> None:
    layer = mn.MintLayer(1, 2, (3, 3)).double()
    assert Inverse(Inverse(layer)) is layer and Inverse(Inverse(layer, mn.Wavefront())) is layer
    once = copy.deepcopy(Inverse(layer))
    assert type(once) is Inverse and Inverse(once) is once.inner
    x = torch.randn(2, 1, 3, 3).double()
    y, log_det = layer(x)
    twice = Inverse(mn.Chain(mn.Flip(), Inverse(layer), mn.Flip()))
    twice.load_state_dict(twice.state_dict())
    flip = mn.Flip()
    found, found_log_det = twice(flip.value(x))
    torch.testing.assert_close((flip.value(found), found_log_det), (y, log_det))
    torch.testing.assert_close(twice.inverse(found), flip.value(x))
    assert bool(twice.solve(found, mn.Wavefront()).converged.all())

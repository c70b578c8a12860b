"""What users do wrong, and what they are told; chains that fail end to end."""

import contextlib
import itertools

import pytest
import torch

import mintnet as mn
from mintnet import calculus as ca
from mintnet.models import MintNetConfig
from registry import CASES, Case, away_from_zero

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("method", ["__call__", "inverse"])
@pytest.mark.parametrize(
    "bijection",
    [
        mn.MintLayer(1, 2, (3, 3)),
        mn.Squeeze(3, (1, 3, 3)),
        mn.Flip(),
        mn.BatchNorm(1).eval(),
        mn.Chain(mn.MintLayer(1, 2, (3, 3)), mn.Flip()),
        mn.Composed(2.0 * ca.Identity(), (1, 3, 3)),
    ],
    ids=lambda b: type(b).__name__,
)
def test_inputs_that_are_not_finite(bijection, method: str, bad: float, raises_with) -> None:
    x = torch.zeros(4, 1, 3, 3)
    x[2, 0, 1, 1] = bad
    if method == "inverse" and isinstance(bijection, mn.Squeeze):
        x = bijection.transform(x)[0]
    with raises_with(ValueError, "finite", "1 of 4 samples", "sample 2", type(bijection).__name__):
        getattr(bijection, method)(x)


def test_wrong_shapes(raises_with) -> None:
    layer = mn.MintLayer(2, 2, (3, 4))
    for shape in ((1, 3, 3, 4), (2, 3, 4), (1, 2, 4, 3), (5,), (1, 1, 1, 1)):
        for method in (layer, layer.inverse, layer.solve):
            with raises_with(ValueError, "(batch, 2, 3, 4)", f"got {shape}"):
                method(torch.zeros(shape))
    for norm in (mn.BatchNorm(2).eval(), mn.ActNorm(2).eval()):
        for method in (norm, norm.inverse, norm.solve):
            with raises_with(ValueError, type(norm).__name__, "(batch, 2, H, W)", "(4, 3, 5, 5)"):
                method(torch.zeros(4, 3, 5, 5))


def _logit(value: float) -> tuple[torch.Tensor, torch.Tensor]:
    return mn.Logit(0.05)(torch.full((1, 2), value))


DOMAIN = "[-0.0555555, 1.05555]"
MISTAKES = [
    (lambda: mn.MintLayer(2, 2, (3, 4))(torch.zeros(1, 2, 3, 4).long()), "torch.int64"),
    (lambda: mn.MintLayer(2, 2, (3, 4))([1.0]), "floating-point", "list"),
    (lambda: mn.Flip()(torch.zeros(3)), "batch of samples"),
    (lambda: mn.Squeeze(2, (1, 2, 2)).solve(torch.randn(4, 1, 1, 1)), "shape"),
    (lambda: mn.Squeeze(2, (1, 3, 4)), "cannot squeeze", "multiples of 2"),
    (lambda: mn.Squeeze(2, (1, 4, 5)), "cannot squeeze", "multiples of 2"),
    (lambda: mn.Squeeze(3, (2, 4, 6)), "cannot squeeze", "multiples of 3"),
    (lambda: mn.Squeeze(0, (1, 4, 4)), "factor", "0"),
    (lambda: mn.MintNet(MintNetConfig((1, 6, 6), (1,) * 3, (1,) * 3)), "squeeze 3×3 pixels by 2"),
    (lambda: mn.ActNorm(2)(torch.ones(4, 2, 3, 3)), "constant"),
    (lambda: mn.BatchNorm(2)(torch.zeros(1, 2, 1, 1)), "more than one value", "(1, 2, 1, 1)"),
    *((lambda lam=lam: mn.Logit(lam), "λ", "between 0 and 1/2") for lam in (0, 0.5, -0.1, 1, NAN)),
    *((lambda value=value: _logit(value), "Logit", DOMAIN) for value in (-0.06, 1.06)),
    (lambda: mn.Chain(mn.Logit(1e-6), mn.Flip())(torch.full((1, 2), 1.5)), "entries in"),
    (lambda: mn.Chain(), "at least one"),
    (
        lambda: mn.Chain(mn.Squeeze(2, (1, 4, 4)), mn.MintLayer(1, 2, (3, 3))),
        *("part 1", "(1, 3, 3)", "(4, 2, 2)"),
    ),
    (lambda: mn.MintNet.preset("mnits"), "'mnits'", "digits, mnist, cifar10, imagenet32"),
    (lambda: MintNetConfig((1, 4, 4), (1, 1), (2,)), "one entry for each stage", "2 and 1"),
    (lambda: MintNetConfig((1, 4, 4), (1,), (0,)), "filters", "0"),
]


@pytest.mark.parametrize(("mistake", "words"), [(call, words) for call, *words in MISTAKES])
def test_mistakes(mistake, words, raises_with) -> None:
    with raises_with(ValueError, *words):
        mistake()


def test_chains_are_made_of_bijections(raises_with) -> None:
    with raises_with(TypeError, "part 1", "Linear"):
        mn.Chain(mn.Flip(), torch.nn.Linear(2, 2))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_empty_batches_go_there_and_back(case: Case) -> None:
    bijection = case.build()
    y, log_det = bijection(case.sample_input(0))
    assert log_det.shape == (0,)
    x = bijection.inverse(y.detach().requires_grad_())
    assert x.shape == (0, *case.input_shape)
    x.sum().backward()
    assert bijection.solve(y).converged.shape == (0,)


@pytest.mark.parametrize("solver", [mn.Wavefront, "wavefront", 5], ids=str)
def test_what_is_no_solver(solver, raises_with) -> None:
    for bijection in (mn.MintLayer(1, 2, (3, 3)), mn.Flip(), mn.Chain(mn.Flip())):
        for method in (bijection.inverse, bijection.solve):
            with raises_with(ValueError, "mintnet.Auto()", "got"):
                method(torch.zeros(1, 1, 3, 3), solver)


def test_squeeze_sends_offsets_to_channels() -> None:
    """Channel c at row offset a and column offset b goes to channel (k·a + b)·C + c."""
    for k, channels in ((2, 3), (3, 2)):
        x = torch.arange(channels * 36, dtype=torch.float64).reshape(1, channels, 6, 6)
        y = mn.Squeeze(k, (channels, 6, 6))(x)[0]
        for a, b, c in itertools.product(range(k), range(k), range(channels)):
            assert torch.equal(y[0, (k * a + b) * channels + c], x[0, c, a::k, b::k])


def test_batch_norm_in_training(raises_with) -> None:
    norm, reference = mn.BatchNorm(2), torch.nn.BatchNorm2d(2)
    x = 3 + 2 * torch.randn(16, 2, 4, 4)
    y, _ = norm(x)
    torch.testing.assert_close(y, reference(x))
    torch.testing.assert_close(norm.mean, reference.running_mean)
    torch.testing.assert_close(norm.variance, reference.running_var)
    for method in (norm.inverse, norm.solve, mn.Chain(norm, mn.Flip()).inverse):
        with raises_with(RuntimeError, "no inverse in training mode", ".eval()"):
            method(y.detach())


def test_act_norm_starts_from_its_first_batch_in_training() -> None:
    norm = mn.ActNorm(2)
    x = torch.randn(64, 2, 4, 4) * torch.tensor([3.0, 0.2]).reshape(2, 1, 1) + 5
    with contextlib.suppress(mn.InversionError, RuntimeError):
        norm.inverse(x)
    norm.eval()(x)
    assert not bool(norm.is_set)
    torch.testing.assert_close(norm.train()(x)[0].std((0, 2, 3), unbiased=False), torch.ones(2))
    shift = norm.shift.clone()
    norm(2 * x)
    assert torch.equal(norm.shift, shift), "only the first batch sets it"


def test_a_chain_that_fails_end_to_end_raises() -> None:
    """Rounding of x₁ ≈ −10⁴ is nothing beside u₀ = 10⁴, and too much when u₁ is magnified."""
    offset, factor = torch.tensor([0.0, 1e4]), torch.tensor([1e-4, 1e2])
    parts = (lambda x: x + offset), (lambda x: factor * x)
    chain = mn.Chain(*(mn.Composed(f, (2,)) for f in parts))
    z = torch.tensor([[1.0, 1.234], [2.0, -0.777]])
    solution = chain.solve(z)
    assert all(bool(part.converged.all()) for part in solution.parts), "each part passes"
    assert solution.status.tolist() == [mn.Status.INACCURATE] * 2
    assert not bool(solution.converged.any()) and bool((solution.residual > 1e-3).all())
    for grad in (False, True):
        with torch.set_grad_enabled(grad), pytest.raises(mn.InversionError, match="end to end"):
            chain.inverse(z.clone().requires_grad_(grad))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_net_inverts_zero_and_its_errors_name_the_part(dtype: torch.dtype, raises_with) -> None:
    net = mn.MintNet(MintNetConfig((1, 4, 4), (1, 1), (4, 2))).to(dtype)
    away_from_zero(net, 1, 1.5)
    assert bool((net(net.inverse(torch.zeros(1, 4, 2, 2, dtype=dtype)))[0].abs() < 1e-4).all())
    z = net(torch.randn(2, 1, 4, 4, dtype=dtype))[0]
    words = "upper MintLayer 4×2×2, K = 2", "2 of 2 samples", "inside a chain of 5 parts"
    with raises_with(mn.InversionError, *words):
        net.inverse(z, mn.FixedPoint(max_steps=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lam", [1e-12, 1e-6, 0.05, 0.3, 0.49])
def test_logit_inverse_far_out_is_right_to_the_last_places_of_x(lam: float, dtype) -> None:
    """The true x rounds to the end of the domain; what comes back has a finite logit still."""
    logit = mn.Logit(lam)
    z = torch.tensor([[-1e30, -90.0, -40.0, -17.5, 17.5, 40.0, 90.0, 1e30]], dtype=dtype)
    x = logit.invert(z)
    exact = (torch.sigmoid(z.double()) - lam) / (1 - 2 * lam)
    last_places = 20 * torch.finfo(dtype).eps * exact.abs().clamp(min=lam)
    assert bool(((x.double() - exact).abs() <= last_places).all())
    y, log_det = logit(x)
    assert bool(y.isfinite().all()) and bool(log_det.isfinite())
    for bijection in (logit, mn.Chain(logit, mn.Flip())):  # f(x) = z, which no x can give any more
        with pytest.raises(mn.InversionError):
            bijection.inverse(z)

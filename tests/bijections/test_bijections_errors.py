"""What users do wrong, and what they are told; chains that fail end to end."""

import contextlib

import pytest
import torch

import mintnet as mn
from mintnet.calculus import Identity
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
        mn.Composed(2.0 * Identity(), (1, 3, 3)),
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
        for method in (layer, layer.inverse):
            with raises_with(ValueError, "(batch, 2, 3, 4)", f"got {shape}"):
                method(torch.zeros(shape))
    with raises_with(ValueError, "floating-point", "torch.int64"):
        layer(torch.zeros(1, 2, 3, 4, dtype=torch.int64))
    with raises_with(ValueError, "floating-point", "list"):
        layer([1.0])
    with raises_with(ValueError, "batch of samples"):
        mn.Flip()(torch.zeros(3))
    with raises_with(ValueError, "BatchNorm", "(batch, 2, H, W)", "(1, 3, 4, 4)"):
        mn.BatchNorm(2).eval()(torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize(
    ("bijection", "shape"),
    [(mn.MintLayer(1, 2, (4, 4)), (2, 1, 1, 4)), (mn.Squeeze(2, (1, 2, 2)), (4, 1, 1, 1))],
    ids=["mint", "squeeze"],
)
def test_solve_refuses_wrong_shapes(bijection, shape) -> None:
    with pytest.raises(ValueError, match="shape"):
        bijection.solve(torch.randn(shape))


def test_empty_batches() -> None:
    y, log_det = mn.MintLayer(1, 2, (3, 3))(torch.zeros(0, 1, 3, 3))
    assert y.shape == (0, 1, 3, 3) and log_det.shape == (0,)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_empty_batches_go_there_and_back(case: Case) -> None:
    bijection = case.build()
    y, log_det = bijection(case.sample_input(0))
    assert log_det.shape == (0,)
    x = bijection.inverse(y.detach().requires_grad_())
    assert x.shape == (0, *case.input_shape)
    x.sum().backward()
    assert bijection.solve(y).converged.shape == (0,)


@pytest.mark.parametrize("norm", [mn.BatchNorm(2), mn.ActNorm(2)], ids=lambda b: type(b).__name__)
def test_norms_say_how_many_channels_they_invert(norm, raises_with) -> None:
    for method in (norm.eval(), norm.inverse, norm.solve):
        with raises_with(ValueError, "(batch, 2, H, W)", "got (4, 3, 5, 5)"):
            method(torch.zeros(4, 3, 5, 5))


@pytest.mark.parametrize("solver", [mn.Wavefront, "wavefront", 5], ids=str)
def test_what_is_no_solver(solver, raises_with) -> None:
    for bijection in (mn.MintLayer(1, 2, (3, 3)), mn.Flip(), mn.Chain(mn.Flip())):
        for method in (bijection.inverse, bijection.solve):
            with raises_with(ValueError, "mintnet.Auto()", "got"):
                method(torch.zeros(1, 1, 3, 3), solver)


def test_squeezes(raises_with) -> None:
    for factor, shape in ((2, (1, 3, 4)), (2, (1, 4, 5)), (3, (2, 4, 6))):
        with raises_with(ValueError, "cannot squeeze", f"multiples of {factor}"):
            mn.Squeeze(factor, shape)
    with raises_with(ValueError, "factor", "0"):
        mn.Squeeze(0, (1, 4, 4))
    with raises_with(ValueError, "cannot squeeze 3×3 pixels by 2"):
        mn.MintNet(MintNetConfig((1, 6, 6), (1, 1, 1), (1, 1, 1)))


def test_squeeze_sends_offsets_to_channels() -> None:
    """Channel c at row offset a and column offset b goes to channel (k·a + b)·C + c."""
    for k, c in ((2, 3), (3, 2)):
        x = torch.arange(c * 6 * 6, dtype=torch.float64).reshape(1, c, 6, 6)
        y = mn.Squeeze(k, (c, 6, 6))(x)[0]
        for a in range(k):
            for b in range(k):
                for channel in range(c):
                    source = x[0, channel, a::k, b::k]
                    assert torch.equal(y[0, (k * a + b) * c + channel], source)


def test_batch_norm_in_training(raises_with) -> None:
    norm = mn.BatchNorm(2)
    x = 3 + 2 * torch.randn(16, 2, 4, 4)
    y, _ = norm(x)
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    reference = torch.nn.BatchNorm2d(2)
    torch.testing.assert_close(y, reference(x))
    torch.testing.assert_close(norm.mean, reference.running_mean)
    torch.testing.assert_close(norm.variance, reference.running_var)
    for method in (norm.inverse, norm.solve, mn.Chain(norm, mn.Flip()).inverse):
        with raises_with(RuntimeError, "no inverse in training mode", ".eval()"):
            method(y.detach())
    with raises_with(ValueError, "more than one value", "(1, 2, 1, 1)"):
        norm(torch.zeros(1, 2, 1, 1))


def test_act_norm_starts_from_its_first_batch(raises_with) -> None:
    norm = mn.ActNorm(2)
    x = torch.randn(64, 2, 4, 4) * torch.tensor([3.0, 0.2]).reshape(2, 1, 1) + 5
    y = norm(x)[0]
    torch.testing.assert_close(y.std((0, 2, 3), unbiased=False), torch.ones(2))
    shift = norm.shift.clone()
    norm(2 * x)
    assert torch.equal(norm.shift, shift), "only the first batch sets it"
    fresh = mn.ActNorm(2).eval()
    fresh(x)
    assert not bool(fresh.is_set)
    with raises_with(ValueError, "constant"):
        mn.ActNorm(2)(torch.ones(4, 2, 3, 3))


def test_an_inverse_does_not_set_act_norm() -> None:
    norm = mn.ActNorm(2)
    with contextlib.suppress(mn.InversionError, RuntimeError):
        norm.inverse(1 + 3 * torch.randn(8, 2, 3, 3))
    assert not bool(norm.is_set)


@pytest.mark.parametrize("lam", [0.0, 0.5, -0.1, 1.0, NAN])
def test_bad_lambdas(lam: float, raises_with) -> None:
    with raises_with(ValueError, "λ", "between 0 and 1/2"):
        mn.Logit(lam)


def test_logit_domain(raises_with) -> None:
    for value in (-0.06, 1.06):
        with raises_with(ValueError, "Logit", "[-0.0555556, 1.05556]"):
            mn.Logit(0.05)(torch.full((1, 2), value))


def test_logit_domain_inside_a_chain() -> None:
    with pytest.raises(ValueError):
        mn.Chain(mn.Logit(1e-6), mn.Flip())(torch.full((1, 2), 1.5))


def test_logit_inverse_of_bright_pixels_in_float32() -> None:
    logit = mn.Logit(1e-6)
    x = torch.linspace(0, 1, 1001)[:, None]
    assert bool(torch.allclose(logit.inverse(logit(x)[0]), x, atol=1e-6))


def test_chains_check_their_parts(raises_with) -> None:
    with raises_with(ValueError, "at least one"):
        mn.Chain()
    with raises_with(TypeError, "part 1", "Linear"):
        mn.Chain(mn.Flip(), torch.nn.Linear(2, 2))
    with raises_with(ValueError, "part 1", "(1, 3, 3)", "(4, 2, 2)"):
        mn.Chain(mn.Squeeze(2, (1, 4, 4)), mn.MintLayer(1, 2, (3, 3)))


def test_unknown_presets(raises_with) -> None:
    with raises_with(ValueError, "'mnits'", "digits, mnist, cifar10, imagenet32"):
        mn.MintNet.preset("mnits")
    with raises_with(ValueError, "one entry for each stage", "2 and 1"):
        MintNetConfig((1, 4, 4), (1, 1), (2,))
    with raises_with(ValueError, "filters", "0"):
        MintNetConfig((1, 4, 4), (1,), (0,))


def test_chains_are_checked_end_to_end() -> None:
    """Each part inverts to its rounding floor; together they lose half of the digits."""
    chain = mn.Chain(
        mn.Composed(1e9 * Identity(), (1,)),
        mn.Composed(Identity() + 1e9, (1,)),
        mn.Composed(Identity() + -1e9, (1,)),
        mn.Composed(1e-9 * Identity(), (1,)),
    ).float()
    z = torch.tensor([[0.123456789], [1.0]])
    solution = chain.solve(z)
    image = chain.transform(solution.value.nan_to_num())[0]
    gap = ((image - z).abs() / z.abs()).flatten()
    assert bool((gap[solution.converged] <= 1e-3).all()), "certified, and not true"


def test_a_chain_that_fails_end_to_end_raises() -> None:
    tiny = mn.Composed(1e-4 * Identity(), (1,))
    far = mn.Composed(Identity() + 3e4, (1,))
    near = mn.Composed(Identity() + -3e4, (1,))
    large = mn.Composed(1e4 * Identity(), (1,))
    chain = mn.Chain(tiny, far, near, large)
    z = torch.tensor([[3.0], [-7.0]])
    solution = chain.solve(z)
    assert all(bool(part.converged.all()) for part in solution.parts), "each part passes"
    assert not bool(solution.converged.any())
    assert solution.status.tolist() == [mn.Status.INACCURATE] * 2
    assert bool((solution.residual > 1e-3).all())
    for grad in (False, True):
        with torch.set_grad_enabled(grad), pytest.raises(mn.InversionError, match="end to end"):
            chain.inverse(z.clone().requires_grad_(grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_is_a_fair_target_for_a_net(dtype: torch.dtype) -> None:
    net = mn.MintNet(MintNetConfig((1, 4, 4), (1, 1), (4, 2))).to(dtype)
    away_from_zero(net, 1, 1.5)
    with torch.no_grad():
        x = net.inverse(torch.zeros(1, 4, 2, 2, dtype=dtype))
        assert bool((net(x)[0].abs() < 1e-4).all())


def test_errors_name_the_part_inside_a_chain() -> None:
    from mintnet import FixedPoint

    net = mn.MintNet(MintNetConfig((1, 4, 4), (1, 1), (4, 2))).double()
    away_from_zero(net, 1, 3.0)
    z = net(torch.randn(2, 1, 4, 4, dtype=torch.float64))[0].detach()
    with pytest.raises(mn.InversionError) as info, torch.no_grad():
        net.inverse(z, FixedPoint(max_steps=0))
    message = str(info.value)
    for words in ("upper MintLayer 4×2×2, K = 2", "2 of 2 samples", "inside a chain of 5 parts"):
        assert words in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lam", [1e-12, 1e-6, 0.05, 0.3, 0.49])
def test_logit_inverse_far_out_is_right_to_the_last_places_of_x(lam: float, dtype) -> None:
    """The true x rounds to the end of the domain; what comes back has a finite logit still."""
    logit = mn.Logit(lam)
    z = torch.tensor([[-1e30, -90.0, -40.0, -17.5, 17.5, 40.0, 90.0, 1e30]], dtype=dtype)
    x = logit.inverse(z)
    exact = (torch.sigmoid(z.double()) - lam) / (1 - 2 * lam)
    last_places = 20 * torch.finfo(dtype).eps * exact.abs().clamp(min=lam)
    assert bool(((x.double() - exact).abs() <= last_places).all())
    y, log_det = logit(x)
    assert bool(y.isfinite().all()) and bool(log_det.isfinite())
    # A chain promises f(x) = z, which no x can give any more.
    with pytest.raises(mn.InversionError):
        mn.Chain(logit, mn.Flip()).inverse(z)

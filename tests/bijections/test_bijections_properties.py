"""What every bijection of the registry must do."""

import copy
import inspect
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

import mintnet as mn
from mintnet.bijections import TriangularBijection
from mintnet.calculus import Verdict, variable
from mintnet.solvers import Wavefront
from registry import (
    CASES,
    HARD,
    SMALL,
    TRIANGULAR,
    Case,
    Sinh,
    along_a_direction,
    jacobian,
    trained_places,
)

by_case = pytest.mark.parametrize("case", CASES, ids=str)
by_triangular = pytest.mark.parametrize("case", TRIANGULAR, ids=str)


def solver_for(case: Case) -> Wavefront | None:
    return Wavefront() if case.name.startswith("trained") else None


@cache
def jacobian_of(case: Case) -> tuple[mn.Bijection, Tensor, Tensor]:
    """The bijection, two inputs and autograd's Jacobians there."""
    bijection, x = case.build(), case.sample_input(2)
    return bijection, x, jacobian(lambda x: bijection(x)[0], x, case.inverted)


@cache
def solved(case: Case) -> tuple[mn.Bijection, Tensor, Tensor, mn.Solution]:
    """The bijection, three inputs, their images, and the solution for these."""
    bijection, x = case.build(), case.sample_input(3)
    z = bijection(x)[0].detach()
    return bijection, x, z, bijection.solve(z, solver_for(case))


@by_case
def test_log_det_equals_autograd(case: Case) -> None:
    bijection, x, j = jacobian_of(case)
    _, expected = torch.linalg.slogdet(j)
    y, log_det = bijection(x)
    assert y.dtype == torch.float64 and log_det.shape == (2,)
    error = (log_det.detach() - expected).abs()
    if not case.exact:
        error = (error_of_the_mean(bijection, x, expected) - case.tolerance).clamp(min=0)
    assert float((error / expected.abs().clamp(min=1)).max()) <= case.tolerance
    assert bool((log_det == 0).all()) is case.volume_preserving
    if not case.volume_preserving:
        assert float(expected.abs().min()) > 1e-2, "a unit Jacobian hides errors"


def error_of_the_mean(bijection: mn.Bijection, x: Tensor, expected: Tensor) -> Tensor:
    """How far the mean of many estimates is off, beyond four standard errors of that mean."""
    draws = 10_000
    with torch.no_grad():
        found = bijection(x.repeat_interleave(draws, 0))[1].reshape(len(x), draws)
    assert float(found.std(1).min()) > 1e-3, "an estimate that does not vary is none"
    allowed = 4 * found.std(1) / draws**0.5
    assert float(allowed.max()) < 0.05, "the estimate varies too much to say anything"
    return ((found.mean(1) - expected).abs() - allowed).clamp(min=0)


@pytest.mark.parametrize("case", [c for c in CASES if c.triangular], ids=str)
def test_jacobian_is_triangular_with_the_slopes_on_its_diagonal(case: Case) -> None:
    bijection, x, j = jacobian_of(case)
    inner = bijection.inner if case.inverted else bijection
    assert isinstance(inner, TriangularBijection)
    rank = inner.ordering.rank(case.input_shape).flatten()
    later = rank[None, :] > rank[:, None]  # output i, input j
    assert int(torch.count_nonzero(j[:, later])) == 0
    diagonal = ("decreasing", "softplus", "arctan", "softplus-negative", "scaled-by-tensor")
    if len(rank) > 1 and case.name.removeprefix("composed-") not in diagonal:
        assert int(torch.count_nonzero(j[:, later.T])) > 0, "nothing is seen at all"
    if case.inverted:
        slope = 1 / inner.evaluate(bijection(x)[0])[1].flatten(1)
    else:
        slope = inner.evaluate(x)[1].flatten(1)
    torch.testing.assert_close(j.diagonal(dim1=1, dim2=2), slope, rtol=1e-10, atol=1e-300)


@by_case
def test_log_slopes_sum_to_the_log_det_at_the_entries_they_belong_to(case: Case) -> None:
    bijection, x = case.build(), case.sample_input(2)
    try:
        y, slopes = bijection.log_slopes(x)
    except ValueError as error:
        assert "not triangular" in str(error)
        outside = mn.FFJORD, mn.Inverse, mn.IResNetBlock, Sinh
        assert any(isinstance(leaf, outside) for leaf in bijection.leaves())
        return
    z, log_det = bijection(x)
    assert torch.equal(y, z) and slopes.shape == x.shape
    torch.testing.assert_close(slopes.flatten(1).sum(1), log_det)
    assert bijection.to_input_order(z).shape == x.shape


def test_log_slopes_go_back_through_squeezes() -> None:
    """The slope of a channel after a squeeze belongs to the pixels that it came from."""
    squeeze, norm = mn.Squeeze(2, (1, 4, 4)), mn.ActNorm(4)
    with torch.no_grad():
        norm.log_scale.copy_(torch.arange(4.0))
    chain = mn.Chain(squeeze, norm, mn.Squeeze(2, (4, 2, 2))).eval()
    x = torch.randn(1, 1, 4, 4)
    z, slopes = chain.log_slopes(x)
    assert slopes[0, 0].tolist() == [[0, 1, 0, 1], [2, 3, 2, 3]] * 2
    torch.testing.assert_close(chain.to_input_order(z), x * slopes.exp())


@by_case
def test_weights_survive_a_file(case: Case, tmp_path: Path) -> None:
    first, second = case.build(), case.build()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.mul_(0.5)
    save_model(first, tmp_path / "weights")
    load_model(second, tmp_path / "weights")
    x = case.sample_input(2)
    torch.testing.assert_close(first.value(x), second.value(x), rtol=1e-6, atol=1e-6)


@by_triangular
def test_evaluate_equals_the_calculus(case: Case) -> None:
    """The fast path of a layer against the map as it is written down."""
    bijection, x = case.build(), case.sample_input(2)
    fast, plain = bijection.evaluate(x), bijection.function(variable(x))
    torch.testing.assert_close(fast[0], plain.data, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fast[1], plain.slope, rtol=1e-11, atol=0)


@by_triangular
def test_slopes_lie_within_their_proved_bounds(case: Case) -> None:
    bijection = case.build()
    proof = bijection.certify()
    assert proof.onto is case.onto and proof.injective
    expected = Verdict.ONTO if case.onto else Verdict.INJECTIVE
    assert bool((proof.verdict == expected).all()), proof.verdict
    for size in (0.1, 1.0, 30.0, 1e3):
        slope = bijection.evaluate(size * case.sample_input(4))[1].detach()
        rounding = 1e-9 if "mixture" in case.name else 1e-12  # of logarithms, far out
        slack = rounding * slope.abs()
        known = slope.isfinite()  # products of exponentials overflow
        assert bool(((slope >= proof.low - slack) | ~known).all())
        assert bool(((slope <= proof.high + slack) | ~known).all())


@by_case
def test_round_trip_and_what_the_solution_says(case: Case) -> None:
    bijection, x, z, solution = solved(case)
    assert bool(solution.converged.all()), solution.message
    with torch.no_grad():
        back = bijection.inverse(z[:1], solver_for(case))
    assert back.shape == x[:1].shape
    for one, found in ((x[:1], back), (x, solution.value)):
        assert float((found - one).abs().max() / one.abs().max()) <= case.tolerance
    image = bijection.transform(solution.value)[0]
    residual = (image - z).abs().flatten(1).amax(1) / z.abs().flatten(1).amax(1)
    floor = 1e-12 if isinstance(bijection, (mn.Chain, mn.MintNet, mn.Inverse)) else 1e-14
    assert bool((residual <= 1.01 * solution.residual + max(floor, case.adaptive)).all())
    for part in (solution.residual, solution.status, solution.steps, solution.evaluations):
        assert part.shape == (len(z),)


@by_case
def test_float32_residual(case: Case) -> None:
    """At most 1e-5 of the largest |z| for each layer, by a float64 copy of it."""
    bijection = case.build().float()
    layers = bijection.leaves() if isinstance(bijection, mn.Chain) else [bijection]
    x = case.sample_input().float()
    for layer in layers:
        with torch.no_grad():
            z = layer(x)[0]
            solution = layer.solve(z, solver_for(case))
            assert bool(solution.converged.all()), solution.message
            exact = copy.deepcopy(layer).double().transform(solution.value.double())[0]
            gap = (exact - z).abs().flatten(1).amax(1)
        assert bool((gap <= max(1e-5, case.tolerance) * z.abs().flatten(1).amax(1)).all())
        x = z


@torch.no_grad()
def test_float32_residual_of_trained_layers_at_full_size() -> None:
    """Inputs are those that the layer meets inside the trained model."""
    for layer, x, z in trained_places((0, *HARD, 15, 39)):
        solution = layer.solve(z, Wavefront())
        assert bool(solution.converged.all()), solution.message
        gap = (layer.evaluate(solution.value)[0] - z).abs().flatten(1).amax(1)
        assert bool((gap <= 1e-5 * z.abs().flatten(1).amax(1)).all())
        assert float((solution.value - x).abs().max() / x.abs().max()) < 1e-2


@by_case
def test_batch_independence(case: Case) -> None:
    """Samples alone give what they give together."""
    bijection, x, _, together = solved(case)
    with torch.no_grad():
        z, log_det = bijection(x)
        for i in range(3):
            y, alone = bijection(x[i : i + 1])
            slack = max(1e-12, case.adaptive)
            torch.testing.assert_close(y[0], z[i], rtol=slack, atol=slack)
            if case.exact:
                torch.testing.assert_close(alone[0], log_det[i], rtol=1e-12, atol=1e-12)
        alone = bijection.solve(z[1:2], solver_for(case))
    assert int(alone.status[0]) == int(together.status[1])
    slack = max(1e-9, case.adaptive)
    torch.testing.assert_close(alone.value[0], together.value[1], rtol=slack, atol=slack)


@by_case
def test_a_nan_sample_touches_no_other(case: Case) -> None:
    bijection, _, z, clean = solved(case)
    with torch.no_grad():
        bad = z.clone()
        bad[1].view(-1)[0] = float("nan")
        mixed = bijection.solve(bad, solver_for(case))
    assert mixed.converged.tolist() == [True, False, True]
    assert bool(mixed.value[1].isnan().all())
    slack = max(1e-9, case.adaptive)
    torch.testing.assert_close(mixed.value[::2], clean.value[::2], rtol=slack, atol=slack)


def _weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


FEW_WEIGHTS = [c for c in SMALL if sum(p.numel() for p in c.build().parameters()) in range(1, 900)]


@pytest.mark.parametrize("case", FEW_WEIGHTS, ids=str)
def test_gradients_of_output_and_log_det_equal_differences(case: Case) -> None:
    bijection, x = case.build().eval(), case.sample_input(2).requires_grad_()
    cotangents = [torch.randn_like(part) for part in bijection(x)]

    def scalar() -> Tensor:
        torch.manual_seed(7)  # estimates with the same noise
        y, log_det = bijection(x)
        return (y * cotangents[0]).sum() + 3 * (log_det * cotangents[1]).sum()

    h = 1e-6 if "leaky" in case.name or case.name == "chain" else max(1e-5, 1e2 * case.adaptive)
    expected, difference = along_a_direction(scalar, [*_weights(bijection).values(), x], h)
    assert difference == pytest.approx(expected, rel=max(2e-5, 10 * case.adaptive), abs=1e-5)


@pytest.mark.parametrize("case", [c for c in SMALL if "leaky" not in c.name], ids=str)
def test_every_weight_moves_the_output_or_none_is_hidden(case: Case) -> None:
    """Weights that are not masked get a gradient; none is silently left out."""
    bijection, x = case.build(), case.sample_input(2)
    y, log_det = bijection(x)
    generator = torch.Generator().manual_seed(5)
    loss = (y * torch.randn(y.shape, generator=generator, dtype=y.dtype)).sum() + log_det.sum()
    if not loss.requires_grad:
        assert not _weights(bijection)
        return
    loss.backward()
    for name, weight in _weights(bijection).items():
        assert weight.grad is not None and bool((weight.grad != 0).any()), name


def test_every_public_bijection_has_an_entry() -> None:
    built = {type(part) for case in CASES for part in case.build().modules()}
    public = {
        value
        for value in map(vars(mn).get, mn.__all__)
        if inspect.isclass(value)
        and issubclass(value, mn.Bijection)
        and not inspect.isabstract(value)
    }
    assert mn.Composed in public and public <= built

"""Captured steps: the same as eager ones, and free of anything that a CUDA graph cannot hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mintnet import FixedPoint, MintLayer
from mintnet.solvers.captured import CapturedSteps, TensorFunction, captured_steps
from mintnet.solvers.fixed_point import State
from registry import normal_mint

SOLVERS = [FixedPoint(), FixedPoint(tolerance=0.0, max_steps=9), FixedPoint(0.7, damped=True)]


def _state(layer: MintLayer, z: Tensor) -> State:
    return State.begin(z, z.abs().flatten(1).amax(1), layer.start(z))


@torch.no_grad()
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_captured_steps_are_eager_steps(solver: FixedPoint, channels: int, upper: bool) -> None:
    layer = normal_mint(channels, 3, (5, 4), upper)
    z = layer(torch.randn(4, channels, 5, 4))[0]
    evaluate = layer.evaluator()
    eager = layer.solve(z, solver)
    steps = CapturedSteps(solver, evaluate, _state(layer, z))
    state = steps.run(evaluate, _state(layer, z), solver.max_steps + 1, solver.tolerance != 0)
    found = solver._solution("layer", [state], None)
    assert torch.equal(found.status, eager.status)
    assert (found.value - eager.value).abs().max() < 1e-5


@torch.no_grad()
def test_layers_of_one_shape_share_captured_steps() -> None:
    """Each run copies the weights in, so that steps captured with one layer solve another."""
    first, second = (normal_mint(2, 3, (5, 4), seed=seed) for seed in (0, 1))
    z = second(torch.randn(4, 2, 5, 4))[0]
    steps = CapturedSteps(FixedPoint(damped=True), first.evaluator(), _state(first, z))
    state = steps.run(second.evaluator(), _state(second, z), 100, True)
    assert (second(state.best)[0] - z).abs().max() < 1e-5 * z.abs().max()
    steps.run(second.evaluator(), _state(second, 2 * z), 100, True)
    assert (second(state.best)[0] - z).abs().max() < 1e-5 * z.abs().max()  # not overwritten


@torch.no_grad()
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_step_can_be_captured(capturable, solver: FixedPoint) -> None:  # type: ignore[no-untyped-def]
    layer = normal_mint(3, 3, (5, 4))
    case = CapturedSteps(solver, layer.evaluator(), _state(layer, torch.randn(4, 3, 5, 4)))
    with capturable():
        case._step()


def test_steps_are_captured_on_a_gpu_alone() -> None:
    layer, z = normal_mint(2, 3, (5, 4)), torch.randn(4, 2, 5, 4)
    assert isinstance(layer.evaluator(), TensorFunction)
    assert captured_steps(FixedPoint(), layer.evaluator(), _state(layer, z)) is None

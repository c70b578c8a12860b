"""A new bijection needs two methods and a line in the registry: all else follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import test_bijections_properties as properties
import torch
from torch import Tensor

from mintnet import BijectionTransform
from mintnet.bijections import AnalyticBijection, TriangularBijection
from mintnet.calculus import MaskedConv2d, Quantity, Tanh
from registry import Case, away_from_zero


class Sinh(AnalyticBijection):
    """y = sinh x: transform and invert."""

    event_shape = (4,)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sinh(), x.cosh().log().flatten(1).sum(1)

    def invert(self, z: Tensor) -> Tensor:
        return z.asinh()


class Ripple(TriangularBijection):
    """y = 2x + tanh(W ⊛ x): the constructor and the function of the calculus."""

    def __init__(self) -> None:
        super().__init__()
        self.event_shape = (2, 3, 3)
        self.conv = MaskedConv2d(2)
        with torch.no_grad():
            self.conv.weight.abs_()

    def function(self, x: Quantity) -> Quantity:
        return 4.0 * x + Tanh()(self.conv(x))


def _ripple() -> Ripple:
    torch.manual_seed(0)
    ripple = away_from_zero(Ripple().double()).eval()
    with torch.no_grad():
        ripple.conv.weight.mul_(0.1)
    return ripple


NEW = [
    Case("sinh", lambda: Sinh().eval(), (4,)),
    Case("ripple", _ripple, (2, 3, 3), triangular=True),
]

CHECKS: list[Callable[[Case], None]] = [
    properties.test_log_det_equals_autograd,
    properties.test_round_trip,
    properties.test_solution_says_what_is_true,
    properties.test_float32_residual,
    properties.test_batch_independence,
    properties.test_gradients_of_output_and_log_det_equal_differences,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", NEW, ids=str)
def test_every_property_holds(case: Case, check: Callable[[Case], None]) -> None:
    check(case)


@pytest.mark.parametrize("case", NEW, ids=str)
def test_adapter_and_storage(case: Case, tmp_path: Path) -> None:
    properties.test_weights_survive_a_file(case, tmp_path)
    transform, x = BijectionTransform(case.build()), case.sample_input(2)
    y = transform(x)
    torch.testing.assert_close(transform.inv(y.detach()), x)
    torch.testing.assert_close(transform.log_abs_det_jacobian(x, y), case.build()(x)[1])


def test_a_triangular_one_has_its_proof_and_its_log_slopes() -> None:
    case = NEW[1]
    properties.test_slopes_lie_within_their_proved_bounds(case)
    properties.test_jacobian_is_triangular_with_the_slopes_on_its_diagonal(case)
    properties.test_log_slopes_sum_to_the_log_det_at_the_entries_they_belong_to(case)

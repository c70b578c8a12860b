"""NICE: additive couplings, and a scale for each entry at the end."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from mintnet.bijections.base import AnalyticBijection
from mintnet.calculus import HalfConditioner, Quantity
from mintnet.flows.affine import AffineLayer
from mintnet.flows.networks import plain_network

Q = TypeVar("Q", bound=Quantity)


class NICECoupling(AffineLayer):
    r"""The second half moved by any function of the first (Dinh, Krueger and Bengio, 2014):

    .. code-block:: text

        y₁ = x₁,    y₂ = x₂ + N(x₁)

    In F with the first half ordered first: every slope is 1, so the volume is preserved.

    Args:
        shape: of one sample, (C, H, W) or (D,).
        partition: "checkerboard", or "channel" for the first half of the channels (or entries).
        upper: the second half moves the first.
        network: N; three layers of ``hidden`` channels if not given.
        hidden: the width of that network.

    Examples:
        >>> layer = NICECoupling((4,), "channel")
        >>> layer.certify().message
        'onto: every slope lies in [1, 1]'
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        partition: str = "checkerboard",
        upper: bool = False,
        network: nn.Module | None = None,
        hidden: int = 64,
    ) -> None:
        check_halves(shape, partition)
        network = network or plain_network(shape, hidden, outputs=1)
        conditioner = HalfConditioner(network, partition, upper, outputs=1)
        super().__init__(shape, conditioner.ordering, None, insist=False)
        self.conditioner = conditioner
        self.prove()

    def function(self, x: Q) -> Q:
        (shift,) = x.conditioned(self.conditioner)
        return x + shift


class EntryScaling(AnalyticBijection):
    r"""y = exp(s) ⊙ (x + b), with one s and one b for each entry: the top layer of NICE.

    The first training batch sets them, as it does in act norm: it comes out with mean 0 and
    variance 1 in every entry. Log-determinant: Σ s.

    Examples:
        >>> scaling = EntryScaling((2,))
        >>> y, _ = scaling(torch.tensor([[1.0, 0.0], [3.0, 8.0]]))
        >>> y
        tensor([[-1., -1.],
                [ 1.,  1.]], grad_fn=<...>)
    """

    event_shape: tuple[int, ...]
    is_set: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.event_shape = tuple(shape)
        self.log_scale = nn.Parameter(torch.zeros(shape))
        self.shift = nn.Parameter(torch.zeros(shape))
        self.register_buffer("is_set", torch.tensor(False))

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not bool(self.is_set):
            self._set_from(x)
        y = (x + self.shift) * self.log_scale.exp()
        return y, self.log_scale.sum().expand(len(x))

    def invert(self, z: Tensor) -> Tensor:
        if self.training and not bool(self.is_set):
            raise RuntimeError(
                "EntryScaling has no inverse yet: the first training batch sets it. Run a batch "
                "forward first, or call .eval() to use it as it is."
            )
        return z * (-self.log_scale).exp() - self.shift

    @torch.no_grad()
    def _set_from(self, x: Tensor) -> None:
        deviation = x.std(0, unbiased=False)
        if not bool((deviation > 0).all()):
            raise ValueError(
                "EntryScaling cannot start from this batch: at least one entry is constant in it. "
                "Start from a batch of different samples."
            )
        self.shift.copy_(-x.mean(0))
        self.log_scale.copy_(-deviation.log())
        self.is_set.fill_(True)

    def extra_repr(self) -> str:
        return f"{self.event_shape}"


def check_halves(shape: tuple[int, ...], partition: str) -> None:
    """Raise if a coupling would have an empty half."""
    entries = shape[0] if partition == "channel" else torch.Size(shape[-2:]).numel()
    if entries < 2:
        raise ValueError(
            f"a coupling needs two halves; samples of shape {tuple(shape)} have only one "
            f"{'channel' if partition == 'channel' else 'place'}. Squeeze first, or take another "
            "partition."
        )

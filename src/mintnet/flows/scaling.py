"""A shift and a scale for each entry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mintnet.bijections.base import EntrywiseBijection


class EntryScaling(EntrywiseBijection):
    r"""y = exp(s) ⊙ (x + b), with one s and one b for each entry: the top layer of NICE.

    The first training batch sets them: it comes out with mean 0 and variance 1 in every entry.
    Log-determinant: Σ s.

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

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not bool(self.is_set):
            self._set_from(x)
        y = (x + self.shift) * self.log_scale.exp()
        return y, self.log_scale.expand_as(x)

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

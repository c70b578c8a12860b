"""Pixels in [0, 1] to the real line, by the logit transform, and to [−1, 1]."""

import math

import torch
from torch import Tensor

from mintnet.bijections.base import EntrywiseBijection


class Logit(EntrywiseBijection):
    r"""x ↦ logit(λ + (1 − 2λ) x) − c, with ``lam`` for λ, between 0 and 1/2, and ``centre`` for c.

    It maps the interval from −λ/(1 − 2λ) to 1 + λ/(1 − 2λ), a little more than the pixels in
    [0, 1], onto the real line. With p = λ + (1 − 2λ) x the slope is (1 − 2λ) / (p (1 − p));
    1 − p is computed from 1 − x, since near white pixels p rounds to 1.

    The centre c is what the zeros around an image stand for in the convolutions behind it. Where
    most pixels are black, that should be black: −6.54 for 256 levels, the mean of log(u / 256).

    Examples:
        >>> Logit(0.05)(torch.full((1, 1), 0.5))[0]
        tensor([[0.]])
        >>> Logit(0.05, centre=-3.0)(torch.full((1, 1), 0.5))[0]
        tensor([[3.]])
    """

    def __init__(self, lam: float, centre: float = 0.0) -> None:
        super().__init__()
        if not 0 < lam < 0.5:
            raise ValueError(f"the logit's λ must lie between 0 and 1/2; got {lam}")
        if not abs(centre) < float("inf"):
            raise ValueError(f"the logit's centre must be a finite number; got {centre}")
        self.lam, self.centre = lam, centre
        margin = lam / (1 - 2 * lam)
        self.domain = (-margin, 1 + margin)

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        width, exact = 1 - 2 * self.lam, x.double()  # p cancels near the ends of the domain
        margin = self.lam / width  # p = width (margin + x): exporters drop factors as near to 1
        log_p, log_q = (margin + exact).log(), (margin + (1 - exact)).log()  # less log(width)
        return (log_p - log_q - self.centre).to(x), (-math.log(width) - log_p - log_q).to(x)

    def invert(self, z: Tensor) -> Tensor:
        """Far out, where x rounds to the end of the domain, it stays just inside of it."""
        p = torch.sigmoid(z + self.centre)
        return ((p - self.lam) / (1 - 2 * self.lam)).clamp(*self.domain_of(z.dtype))

    def domain_of(self, dtype: torch.dtype) -> tuple[float, float]:
        """The domain less some units in the last place, so that logit and slope are finite."""
        shrink = 1 - 8 * torch.finfo(dtype).eps
        low, high = (torch.tensor(end * shrink, dtype=dtype).item() for end in self.domain)
        return low, high

    def extra_repr(self) -> str:
        return f"λ={self.lam:g}" + (f", centre={self.centre:g}" if self.centre else "")


class Unchanged(EntrywiseBijection):
    """y = x: pixels in [0, 1] as they are, for a layer that knows their grey levels.

    Examples:
        >>> Unchanged()(torch.tensor([[0.25]]))
        (tensor([[0.2500]]), tensor([0.]))
    """

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.zeros_like(x)

    def invert(self, z: Tensor) -> Tensor:
        return z


class Rescale(EntrywiseBijection):
    """y = 2x − 1 for each entry.

    Examples:
        >>> Rescale()(torch.tensor([[0.0, 0.5, 1.0]]))[0]
        tensor([[-1.,  0.,  1.]])
    """

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * x - 1, torch.full_like(x, math.log(2))

    def invert(self, z: Tensor) -> Tensor:
        return (z + 1) / 2

"""i-ResNet: a residual block made invertible by a Lipschitz constant below 1. Outside F."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.bijections.base import Bijection
from mintnet.calculus import LOWER
from mintnet.calculus.masks import check_positive
from mintnet.flows.couplings import check_shape
from mintnet.solvers import Auto, FixedPoint, ResidualIteration, Solution, Solver, System
from mintnet.solvers.gradient import attach_gradient

STEPS = 2000  # of the inverse at most: with a Lipschitz constant of 0.97 float64 needs 1200
SETTLED, MOVED_LITTLE = 1e-9, 1e-2  # shares of the norm: power iterations stop, one is enough


class SpectralLinear(nn.Module):
    """A dense layer or a convolution with W / max(1, ‖W‖ / c) in the place of W.

    ‖W‖ is the largest singular value of the map on whole samples, by power iteration, which starts
    where it ended for the last weights. It approaches ‖W‖ from below: c should leave some room.
    """

    vector: Tensor

    def __init__(
        self, shape: tuple[int, ...], out: int, kernel_size: int = 3, coefficient: float = 0.9
    ) -> None:
        super().__init__()
        taps = (kernel_size, kernel_size) if len(shape) == 3 else ()
        self.weight = nn.Parameter(torch.empty(out, shape[0], *taps))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.orthogonal_(self.weight)
        self.coefficient = coefficient
        self.register_buffer("vector", torch.randn(1, *shape))
        self._seen_gain: float | None = None  # ‖W u‖ when u was last moved
        self._settled = False

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / torch.clamp(self.norm() / self.coefficient, min=1)
        return self._image(x, weight) + (self.bias if x.dim() == 2 else self.bias[:, None, None])

    def norm(self) -> Tensor:
        """‖W‖ for the weights as they are, differentiable in them."""
        if self.weight.is_cuda and torch.cuda.is_current_stream_capturing():
            self._iterate(1 if self.training else 0)  # nothing can be compared here
        else:
            self._update()
        u = self.vector.clone()  # the buffer moves with the next step; backward needs this one
        return self._image(u, self.weight).square().sum().sqrt()

    @torch.no_grad()
    def _update(self) -> None:
        """Move u for new weights: one step where training has moved them a little, else many."""
        gain = self._gain()
        if gain == self._seen_gain and (self.training or self._settled):
            return
        small_step = False
        if self.training and self._seen_gain is not None:
            self._iterate(1)
            small_step = self._gain() <= (1 + MOVED_LITTLE) * gain
        if not small_step:
            self._settle()
        self._seen_gain, self._settled = self._gain(), not small_step

    def _settle(self) -> None:
        enough = max(SETTLED, 4 * torch.finfo(self.weight.dtype).eps)
        self._iterate(1)
        now = self._gain()
        for _ in range(200):
            self._iterate(10)
            last, now = now, self._gain()
            if abs(now - last) <= enough * now:
                break

    @torch.no_grad()
    def _iterate(self, steps: int) -> None:
        u = self.vector
        for _ in range(steps):
            v = self._image(u, self.weight)
            if v.dim() == 2:
                u = v @ self.weight
            else:
                u = F.conv_transpose2d(v, self.weight, padding=self.weight.shape[-1] // 2)
            u = u / u.norm().clamp(min=1e-30)
        self.vector.copy_(u)

    def _gain(self) -> float:
        return float(self._image(self.vector, self.weight.detach()).norm())

    def _image(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dim() == 2:
            return x @ weight.T
        return F.conv2d(x, weight, padding=weight.shape[-1] // 2)


class IResNetBlock(Bijection):
    """y = x + g(x) with Lip(g) < 1 (Behrmann et al., 2019).

    g has three spectrally normalized layers with ELU between them, each bounded by c =
    ``coefficient``. log |det J| is the series tr(J_g) − tr(J_g²)/2 + …, cut after ``terms`` and
    with each trace *estimated* by the mean of vᵀ J_gᵏ v for ``probes`` random v: it changes from
    call to call, with a small bias. The inverse is the fixed point of x ← y − g(x).

    Examples:
        >>> block, x = IResNetBlock((4,), hidden=8), torch.randn(3, 4)
        >>> bool(torch.allclose(block.inverse(block(x)[0]), x, atol=1e-4))
        True
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        hidden: int = 64,
        coefficient: float = 0.97,
        terms: int = 8,
        probes: int = 1,
    ) -> None:
        super().__init__()
        check_shape(shape)
        check_positive(hidden=hidden, terms=terms, probes=probes)
        if not 0 < coefficient < 1:
            why = "or the block need not be invertible"
            raise ValueError(f"coefficient must lie between 0 and 1, {why}; got {coefficient}")
        self.event_shape = tuple(shape)
        self.coefficient, self.terms, self.probes = coefficient, terms, probes
        inside = (hidden, *shape[1:])
        sizes = (shape, hidden, 3), (inside, hidden, 1), (inside, shape[0], 3)
        first, middle, last = (SpectralLinear(*size, coefficient) for size in sizes)
        self.g = nn.Sequential(first, nn.ELU(), middle, nn.ELU(), last)

    def transform(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wanted = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad and wanted else x.detach().requires_grad_()
            g, log_det = self.g(at), x.new_zeros(len(x))
            for _ in range(self.probes):  # Σ (−1)ᵏ⁺¹ vᵀ J_gᵏ v / k, the mean over the probes
                v = w = torch.randn_like(at)
                for k in range(1, self.terms + 1):
                    (w,) = torch.autograd.grad(g, at, w, create_graph=wanted, retain_graph=True)
                    log_det = log_det - (-1) ** k * (w * v).flatten(1).sum(1) / k / self.probes
        return (x + g, log_det) if wanted else (x + g.detach(), log_det.detach())

    @torch.no_grad()
    def find(self, z: Tensor, solver: Solver | None = None) -> Solution:
        if solver is None or isinstance(solver, Auto):
            solver = ResidualIteration(STEPS)
        if not isinstance(solver, ResidualIteration | FixedPoint):
            wanted = "it takes ResidualIteration(), FixedPoint() or Auto()"
            raise ValueError(f"an IResNetBlock is not triangular: {wanted}; got {solver!r}")
        return solver.attempt(System("IResNetBlock", self._evaluate, torch.clone, LOWER), z)

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.g(x), torch.ones_like(x)

    def value(self, x: Tensor) -> Tensor:
        return self._evaluate(x)[0]

    def attach(self, x: Tensor, z: Tensor) -> Tensor:
        return attach_gradient(x, z, self._evaluate, "IResNetBlock", max_steps=STEPS)

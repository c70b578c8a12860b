"""Pictures with wanted logits: the least change of pixels, by damped Gauss-Newton steps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.models import Classifier

PIXEL_WEIGHT = 3e-4
"""What changes of pixels count against changes of logits, both squared, these as shares of the
change that is asked for."""


class Search:
    """Looks for pictures near a wish, see `Explainer`; the model is in float64 and frozen."""

    def __init__(self, model: Classifier, smooth: float, rounds: int) -> None:
        if not 0 <= smooth < float("inf"):
            raise ValueError(f"smooth is a width in pixels, 0 or more; got {smooth}")
        if rounds < 1:
            raise ValueError(f"rounds is at least 1; got {rounds}")
        self.model, self.quick = model, copy.deepcopy(model).float()
        self.rounds, self.smoothed = rounds, _gaussian(smooth)
        ends = torch.tensor([0.0, model.levels - 1.0], dtype=torch.float64, device=model.device)
        self.low, self.high = (
            model.pixels.normalized(end.expand(model.shape[0], 1, 1)) for end in ends
        )

    def approach(
        self,
        x: Tensor,
        wish: Tensor,
        rows: Tensor,
        target: Tensor,
        scale: float,
        at_least: Tensor | None = None,
    ) -> Tensor:
        """A picture near ``wish`` whose logits l fulfil rows · l = target, pixels in range.

        Damped Gauss-Newton steps on ½ ‖rows · l − target‖² + ½ μ ‖x − wish‖², where μ goes with
        the square of ``scale``, the size of the changes of logits that matter. Rows that are
        marked in ``at_least`` fulfil rows · l ≥ target instead.
        """
        mu = PIXEL_WEIGHT * max(scale, 1e-6) ** 2
        damping = 0.1 * mu

        def missing(value: Tensor) -> Tensor:
            left = target - value
            return left if at_least is None else torch.where(at_least, left.clamp(min=0), left)

        def merit(value: Tensor, at: Tensor) -> float:
            far = (at - wish).square().sum()
            return float(0.5 * missing(value).square().sum() + 0.5 * mu * far)

        value, slopes = self._linearized(x, rows)
        best = merit(value, x)
        for _ in range(self.rounds):
            for _ in range(10):
                left = missing(value)
                asked = torch.ones_like(left) > 0 if at_least is None else ~at_least | (left > 0)
                step = self._step(x, wish, slopes[asked], left[asked], mu, damping)
                trial = torch.maximum(torch.minimum(x + step, self.high), self.low)
                with torch.no_grad():
                    found = merit(rows @ self._logits(trial)[0], trial)
                if found < best:
                    break
                damping *= 5
            else:
                return x
            settled = best - found < 1e-3 * best
            x, best, damping = trial, found, max(damping / 5, 1e-3 * mu)
            if settled:
                return x
            value, slopes = self._linearized(x, rows)
        return x

    def _step(
        self, x: Tensor, wish: Tensor, slopes: Tensor, left: Tensor, mu: float, damping: float
    ) -> Tensor:
        """The Gauss-Newton step, with pixels held that would leave their range."""
        free, step = torch.ones_like(x), torch.zeros_like(x)
        eye = torch.eye(len(slopes), dtype=x.dtype, device=x.device)
        for _ in range(5):
            smooth = free * self.smoothed(free * slopes)  # (rows, C, H, W)
            wanted = free * (wish - x) * (mu / (mu + damping))
            gram = smooth.flatten(1) @ slopes.flatten(1).T
            rest = left - slopes.flatten(1) @ wanted.flatten()
            factors = torch.linalg.solve(gram + (mu + damping) * eye, rest)
            step = wanted + torch.einsum("r,rchw->chw", factors, smooth)
            outward = ((x <= self.low) & (step < 0)) | ((x >= self.high) & (step > 0))
            if not bool((outward & (free > 0)).any()):
                break
            free = torch.where(outward, 0.0, free)
        return step

    def _linearized(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows · logits and their gradients with respect to x, (R,) and (R, C, H, W).

        Each row has a copy of the picture, so that one pass gives all gradients.
        """
        with torch.enable_grad():
            copies = x.detach().expand(len(rows), *x.shape[1:]).contiguous().requires_grad_(True)
            values = (rows * self._logits(copies)).sum(1)
            (slopes,) = torch.autograd.grad(values.sum(), copies)
        return values.detach(), slopes

    def _logits(self, x: Tensor) -> Tensor:
        """Logits by features in float32, (batch, classes) float64."""
        return self.model.head(self.quick.chain.value(self.model.padded(x).float()).double())


def _gaussian(width: float) -> Callable[[Tensor], Tensor]:
    """A blur of that width in pixels, a symmetric positive map of (N, C, H, W)."""
    if width == 0:
        return lambda images: images
    reach = max(1, round(3 * width))
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / width) ** 2)
    taps = taps / taps.sum()

    def blur(images: Tensor) -> Tensor:
        n, c, h, w = images.shape
        kernel = taps.to(images.device)
        flat = images.reshape(n * c, 1, h, w)
        flat = F.conv2d(flat, kernel.reshape(1, 1, 1, -1), padding=(0, reach))
        flat = F.conv2d(flat, kernel.reshape(1, 1, -1, 1), padding=(reach, 0))
        return flat.reshape(images.shape)

    return blur

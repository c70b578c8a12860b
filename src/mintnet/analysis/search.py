"""Pictures with wanted logits: the least change of pixels, by damped Gauss-Newton steps."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import MintLayer
from mintnet.models import Classifier

Goal = tuple[Tensor, Tensor]
PIXEL_WEIGHT = 3e-4  # of squared changes of pixels against those of logits, as shares of ``scale``
TAPS = torch.exp(-0.5 * torch.arange(-3, 4, dtype=torch.float64) ** 2)
"""A Gaussian of width 1: of two changes that do the same to the logits, the smoother is taken."""


class Search:
    """Looks for pictures near a wish, see `Explainer`; the model is in float64 and frozen."""

    def __init__(self, model: Classifier, rounds: int) -> None:
        if rounds < 1:
            raise ValueError(f"rounds is at least 1; got {rounds}")
        self.model, self.rounds = model, rounds
        leaves = copy.deepcopy(model.chain).float().leaves()  # gradients in float32
        # Masks and signs are applied once, since the weights do not change.
        self.parts = [p.evaluator() if isinstance(p, MintLayer) else p for p in leaves]
        ends = torch.tensor([[0.0], [model.levels - 1.0]], dtype=torch.float64, device=model.device)
        ends = ends.expand(2, model.shape[0])[..., None, None]
        self.low, self.high = model.pixels.normalized(ends)

    def path(
        self, x: Tensor, rows: Tensor, scale: float, at_least: Tensor, goals: Sequence[Goal]
    ) -> list[Tensor]:
        """Pictures from x on, one for each goal, a wish and a target: near the wish, with logits l
        that fulfil rows · l = target, pixels in range.

        Damped Gauss-Newton steps on ½ ‖rows · l − target‖² + ½ μ ‖x − wish‖², where μ goes with
        the square of ``scale``, the size of the changes of logits that matter. Rows that are
        marked in ``at_least`` fulfil rows · l ≥ target instead. After a step that helps, gradients
        get Broyden's update; they are computed again where a step brings little.
        """
        mu, found, exact = PIXEL_WEIGHT * max(scale, 1e-6) ** 2, [], True
        value, slopes = self._linearized(x, rows)
        for wish, target in goals:

            def missing(value: Tensor, target: Tensor = target) -> Tensor:
                return torch.where(at_least, (target - value).clamp(min=0), target - value)

            def merit(value: Tensor, at: Tensor, wish: Tensor = wish) -> float:
                far = (at - wish).square().sum()
                return float(0.5 * missing(value).square().sum() + 0.5 * mu * far)

            best, damping = merit(value, x), 0.1 * mu
            for _ in range(self.rounds):
                left = missing(value)
                asked = ~at_least | (left > 0)
                step = self._step(x, wish, slopes[asked], left[asked], mu, damping)
                trial = torch.maximum(torch.minimum(x + step, self.high), self.low)
                reached = rows @ self._logits(trial)[0]
                gain = best - merit(reached, trial)
                little, damping = gain < 1e-3 * best, 5 * damping
                if gain > 0:
                    step = trial - x
                    wrong = reached - value - slopes.flatten(1) @ step.flatten()
                    slopes = slopes + wrong[:, None, None, None] * step / step.square().sum()
                    x, value, best = trial, reached, best - gain
                    damping = max(damping / 25, 1e-3 * mu)
                if little and exact and gain > 0:
                    break
                if little and not exact:
                    value, slopes = self._linearized(x, rows)
                exact = little
            found.append(x)
        return found

    def _step(
        self, x: Tensor, wish: Tensor, slopes: Tensor, left: Tensor, mu: float, damping: float
    ) -> Tensor:
        """The Gauss-Newton step, with pixels held that would leave their range."""
        free, step = torch.ones_like(x), torch.zeros_like(x)
        eye = torch.eye(len(slopes), dtype=x.dtype, device=x.device)
        for _ in range(5):
            smooth = free * _blurred(free * slopes)  # (rows, C, H, W)
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
        """rows · logits and their gradients with respect to x, (R,) and (R, C, H, W)."""
        with torch.enable_grad():  # each row has a copy of the picture: one pass gives all
            copies = x.detach().expand(len(rows), *x.shape[1:]).contiguous().requires_grad_(True)
            values = (rows * self._logits(copies)).sum(1)
            (slopes,) = torch.autograd.grad(values.sum(), copies)
        return values.detach(), slopes

    def _logits(self, x: Tensor) -> Tensor:
        """Logits by features in float32, (batch, classes) float64."""
        x = self.model.padded(x).float()
        for part in self.parts:
            x = part.value(x)
        return self.model.head(x.double())


def _blurred(images: Tensor) -> Tensor:
    """A symmetric positive map of (N, C, H, W)."""
    taps, flat = (TAPS / TAPS.sum()).to(images.device), images.flatten(0, 1)[:, None]
    flat = F.conv2d(flat, taps.reshape(1, 1, 1, -1), padding=(0, len(taps) // 2))
    flat = F.conv2d(flat, taps.reshape(1, 1, -1, 1), padding=(len(taps) // 2, 0))
    return flat.reshape(images.shape)

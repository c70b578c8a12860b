"""What an invertible classifier is for: from features back to pictures.

Three questions about a picture: what its features hold (mapped back they give the picture itself);
what the classifier cannot tell apart (the way to another picture with all logits held); and what
would make it another class (the least change of the picture). Every picture shown is the inverse of
features, with its residual check, rounded to grey levels; its figures are recomputed from it.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import MintLayer
from mintnet.models import Classifier
from mintnet.solvers import Solver

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # how far along each path pictures are shown
PIXEL_WEIGHT = 3e-4  # of squared changes of pixels against those of logits, as shares of ``scale``
Goal = tuple[Tensor, Tensor]  # the picture to be near, and the target of the logits
GAUSSIAN = torch.exp(-0.5 * torch.arange(-3, 4, dtype=torch.float64) ** 2)


@dataclass(frozen=True)
class Shown:
    """A picture with its figures; black, with NaN, where the inversion is not verified."""

    image: Tensor  # (C, H, W) uint8, clipped and rounded
    logits: Tensor  # (classes,) recomputed from the image
    share: float = 0.0  # how far along the path
    verified: bool = True  # whether the inversion is, in every layer and end to end
    residual: float = 0.0  # of the inversion, end to end
    moved: float = 0.0  # root mean square of the change of pixels, as a share of their range

    @property
    def predicted(self) -> int:
        """The most probable class of the picture; raises ValueError where there is none."""
        if not self.verified:
            raise ValueError("the inversion is not verified, so there is no picture to classify")
        return int(self.logits.argmax())

    @property
    def probability(self) -> float:
        """The probability of that class."""
        return float(self.logits.softmax(0).max())

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain data; those of the picture are None where it is not verified."""
        kept = {"share": self.share, "verified": self.verified, "residual": self.residual}
        known = {"logits": self.logits.tolist(), "probability": self.probability}
        known |= {"moved": self.moved, "predicted": int(self.logits.argmax())}
        return kept | (known if self.verified else dict.fromkeys(known))


@dataclass(frozen=True)
class Path:
    """Pictures one after another, each with its figures."""

    title: str  # what happens along it
    note: str  # how to read it
    start: Shown  # the picture that it begins with
    steps: tuple[Shown, ...]
    goal: Tensor | None = None  # the picture that it leads to

    def to_dict(self) -> dict[str, Any]:
        steps = [step.to_dict() for step in self.steps]
        return {"title": self.title, "start": self.start.to_dict(), "steps": steps}


class Explainer:
    """Answers questions about pictures (C, H, W) uint8, with copies of a classifier.

    Inverses and figures are in float64. ``rounds``: the most Gauss-Newton steps to a next picture.

    Examples:
        >>> explainer = Explainer(Classifier.preset("digits").eval(), rounds=3)
        >>> image = torch.randint(0, 17, (1, 8, 8), dtype=torch.uint8)
        >>> back = explainer.there_and_back(image).steps[0]
        >>> back.verified, bool((back.image == image).all())
        (True, True)
    """

    def __init__(self, classifier: Classifier, solver: Solver | None = None, rounds: int = 8):
        if classifier.training:
            raise ValueError("pictures are explained in evaluation mode; call .eval() first")
        if rounds < 1:
            raise ValueError(f"rounds is at least 1; got {rounds}")
        self.model = model = copy.deepcopy(classifier).double().requires_grad_(False)
        self.solver, self.rounds = solver, rounds
        leaves = copy.deepcopy(model.chain).float().leaves()  # gradients in float32
        # Masks and signs are applied once, since the weights do not change.
        self.parts = [p.evaluator() if isinstance(p, MintLayer) else p for p in leaves]
        ends = torch.tensor([0.0, model.levels - 1.0], dtype=torch.float64, device=model.device)
        ends = ends[:, None, None, None].expand(2, model.shape[0], 1, 1)
        self.low, self.high = model.pixels.normalized(ends)

    def there_and_back(self, image: Tensor) -> Path:
        """The picture, and its features mapped back."""
        x, start = self._begin(image)
        steps = self._invert([x], x, (1.0,))
        return Path("Features mapped back", "the same picture, byte for byte", start, steps)

    def held(self, image: Tensor, partner: Tensor, shares: Sequence[float] = SHARES) -> Path:
        """From the picture towards a partner, as far as that goes with all logits held."""
        x, start = self._begin(image)
        goal, target = self._prepared(partner), self.model.logits(x)[0]
        every = torch.eye(self.model.classes, dtype=x.dtype, device=x.device)
        scale = float((self.model.logits(goal)[0] - target).abs().max())
        goals = [(x + share * (goal - x), target) for share in shares]
        places = self._search(x, every, scale, goals, equal=len(every))
        note = "towards the picture on the right, as far as it goes while all logits stay"
        title, steps = "What the classifier cannot tell apart", self._invert(places, x, shares)
        return Path(title, note, start, steps, partner.cpu())

    def towards(self, image: Tensor, label: int, shares: Sequence[float] = SHARES) -> Path:
        """The least change of the picture that makes two classes change places.

        At the end the difference of their logits is the opposite, and no other class is above.
        """
        x, start = self._begin(image)
        predicted, classes = start.predicted, self.model.classes
        if not 0 <= label < classes or label == predicted:
            wanted = f"another class than {predicted} between 0 and {classes - 1}"
            raise ValueError(f"expected {wanted}; got {label}")
        others = [predicted, *(k for k in range(classes) if k not in (label, predicted))]
        rows = -torch.eye(classes, dtype=x.dtype, device=x.device)[others]
        rows[:, label] = 1.0
        begin = (rows @ self.model.logits(x)[0])[0]
        goals = [(x, (begin * (1 - 2 * share)).expand(len(rows))) for share in shares]
        places = self._search(x, rows, 2 * abs(float(begin)), goals, equal=1)
        note = "the least change of pixels that moves the logits of the two classes past each other"
        return Path(f"The way to class {label}", note, start, self._invert(places, x, shares))

    def _begin(self, image: Tensor) -> tuple[Tensor, Shown]:
        """The picture as it enters the classifier, and as the first of a path."""
        x = self._prepared(image)
        return x, Shown(image.cpu(), self.model.logits(x)[0].cpu())

    def _prepared(self, image: Tensor) -> Tensor:
        self.model.check_images(image[None], floating=False)
        return self.model.prepared(image[None].to(self.model.device))

    @torch.no_grad()
    def _invert(
        self, places: list[Tensor], origin: Tensor, shares: Sequence[float]
    ) -> tuple[Shown, ...]:
        """The pictures with the features of each place, inverted at once, and their figures."""
        model = self.model
        found = model.solve(model.values(model.padded(torch.cat(places))), self.solver)
        lost = ~(found.solution.converged & found.images.isfinite().flatten(1).all(1))
        images = model.to_images(found.images.nan_to_num())
        change = images.double() - model.to_images(origin).double()
        moved = change.square().flatten(1).mean(1).sqrt() / (model.levels - 1)
        logits = model.logits(model.prepared(images))
        images[lost], logits[lost], moved[lost] = 0, math.nan, math.nan
        residuals, verified = found.solution.residual.tolist(), (~lost).tolist()
        figures = images.cpu(), logits.cpu(), shares, verified, residuals, moved.tolist()
        return tuple(Shown(*row) for row in zip(*figures, strict=True))

    def _search(
        self, x: Tensor, rows: Tensor, scale: float, goals: Sequence[Goal], equal: int
    ) -> list[Tensor]:
        """Pictures from x on, one for each goal (a wish and a target), pixels in range.

        Damped Gauss-Newton steps on ½ ‖rows · l − target‖² + ½ μ ‖x − wish‖² with the logits l of
        x, where μ goes with the square of ``scale``, the size of the changes of logits that
        matter. Rows after the first ``equal`` fulfil rows · l ≥ target instead. After a step that
        helps, gradients get Broyden's update; they are computed again where a step brings little.
        """
        mu, found, exact = PIXEL_WEIGHT * max(scale, 1e-6) ** 2, [], True
        at_least = torch.arange(len(rows), device=x.device) >= equal

        def missing(value: Tensor, target: Tensor) -> Tensor:
            return torch.where(at_least, (target - value).clamp(min=0), target - value)

        def merit(value: Tensor, target: Tensor, far: Tensor) -> float:
            return float(missing(value, target).square().sum() + mu * far.square().sum()) / 2

        value, slopes = self._linearized(x, rows)
        for wish, target in goals:
            best, damping = merit(value, target, x - wish), 0.1 * mu
            for _ in range(self.rounds):
                left = missing(value, target)
                asked = ~at_least | (left > 0)
                step = self._step(x, wish, slopes[asked], left[asked], mu, damping)
                trial = (x + step).clamp(self.low, self.high)
                reached = rows @ self._logits(trial)[0]
                gain = best - merit(reached, target, trial - wish)
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
        """The Gauss-Newton step within the range of pixels; of equal changes the smoother one."""
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
    """Images (N, C, H, W) convolved with a Gaussian of width 1: a symmetric positive map."""
    taps, flat = (GAUSSIAN / GAUSSIAN.sum()).to(images.device), images.flatten(0, 1)[:, None]
    flat = F.conv2d(flat, taps.reshape(1, 1, 1, -1), padding="same")
    flat = F.conv2d(flat, taps.reshape(1, 1, -1, 1), padding="same")
    return flat.reshape(images.shape)

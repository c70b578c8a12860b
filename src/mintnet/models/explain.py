r"""What an invertible classifier is for: from features back to pictures.

Questions about a picture, each answered with pictures that can be looked at:

1. *What do its features hold?* Mapped back they give the picture itself.
2. *What can it not tell apart?* The head (ELU, mean, linear) sees features only through the logits.

   - Moved freely: features are moved along directions that leave all logits exactly as they are,
     and the inverse shows the input that has these features. Features of pictures are a thin set
     in the space of features, so such inputs soon leave the range of pixels.
   - Along pictures: from one picture towards another one, as far as that goes while all logits
     stay those of the first.
3. *What would make it another class?* The same two ways: the least change of the features, moved
   freely; and the least change of the picture, that moves two logits past each other.

Along pictures means: of all directions Δz = J v that pictures can make (J is the Jacobian of the
features with respect to pixels), the one that does to the logits what is wanted with the least
change v of pixels; steps are damped Gauss-Newton steps with pixels kept in their range.

Every picture shown is the inverse of some features, with its certificate, then without the padding,
clipped and rounded to grey levels. All figures about it are recomputed from that picture.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.bijections import MintLayer
from mintnet.models.classifier import Classifier
from mintnet.solvers import Solver

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""How far along each path pictures are shown."""

PIXEL_WEIGHT = 3e-4
"""What changes of pixels count against changes of logits, both squared, these as shares of the
change that the path is about."""

FREE_MOVES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Root mean square of the pixels' change in a free move, as shares of the range of pixels."""


PICTURE_FIGURES = (
    "predicted",
    "probability",
    "logits",
    "logit_change",
    "picture_moved",
    "picture_moved_before_clipping",
    "clipped",
    "padding_energy",
)
"""Figures of a step that there are only where its picture is certified."""


@dataclass(frozen=True)
class Shown:
    """A picture with its figures, one step of a path.

    Where the inversion is not certified there is no picture: the image is black, and all figures
    about it are NaN.

    Attributes:
        share: how far along the path.
        image: (C, H, W) uint8, as it is shown: clipped and rounded.
        wanted: (classes,) the logits of the features that were inverted.
        logits: (classes,) recomputed from the image.
        certified: whether the inversion is, in every layer and end to end.
        residual: of the inversion, end to end.
        padding_energy: mean square of what landed in the padding, and is not shown.
        clipped: the share of pixels outside their range before they were clipped.
        moved: root mean square of the change of pixels, as a share of their range.
        moved_before: the same before clipping and rounding.
        reached: whether the picture moved about as far as was asked for; of free moves alone.
    """

    share: float
    image: Tensor
    wanted: Tensor
    logits: Tensor
    certified: bool
    residual: float
    padding_energy: float
    clipped: float
    moved: float
    moved_before: float
    reached: bool = True

    @property
    def predicted(self) -> int:
        """The most probable class of the picture; raises ValueError where there is none."""
        if not self.certified:
            raise ValueError("the inversion is not certified, so there is no picture to classify")
        return int(self.logits.argmax())

    @property
    def probability(self) -> float:
        """The probability of that class."""
        return float(self.logits.softmax(0).max())

    def to_dict(self, start: Tensor) -> dict[str, Any]:
        """The figures as plain data; ``start`` are the logits at the beginning of the path.

        Figures of a picture are None where there is none, see the class.
        """
        figures: tuple[Any, ...] = (None,) * len(PICTURE_FIGURES)
        if self.certified:
            figures = (
                self.predicted,
                self.probability,
                self.logits.tolist(),
                float((self.logits - start).abs().max()),
                self.moved,
                self.moved_before,
                self.clipped,
                self.padding_energy,
            )
        return {
            "share": self.share,
            **dict(zip(PICTURE_FIGURES, figures, strict=True)),
            "wanted_logits": self.wanted.tolist(),
            "logit_change_before_clipping": float((self.wanted - start).abs().max()),
            "certified": self.certified,
            "residual": self.residual,
            "reached": self.reached,
        }


@dataclass(frozen=True)
class Path:
    """Pictures one after another, each with its figures.

    Attributes:
        title: what happens along it.
        note: how to read it.
        start: the picture that it begins with.
        steps: the others.
        has_goal: whether it leads towards another picture.
    """

    title: str
    note: str
    start: Shown
    steps: tuple[Shown, ...]
    has_goal: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The path as plain data."""
        first = self.start.logits
        return {
            "title": self.title,
            "note": self.note,
            "start": self.start.to_dict(first),
            "steps": [step.to_dict(first) for step in self.steps],
        }


class Explainer:
    """Answers questions about pictures; works on copies of the classifier.

    Inverses, and all figures, are computed in float64; the search along pictures, which any
    picture may come out of, in float32.

    Args:
        classifier: in evaluation mode.
        solver: for inverses; the default if not given.
        smooth: changes of pixels are smoothed with a Gaussian of this width in pixels: of two
            changes that do the same to the logits the smoother one is preferred. 0: none.
        rounds: the most Gauss-Newton steps between two pictures.

    Examples:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch...>
        >>> explainer = Explainer(Classifier.preset("digits").eval(), rounds=3)
        >>> image = torch.randint(0, 17, (1, 8, 8), dtype=torch.uint8)
        >>> back = explainer.there_and_back(image).steps[0]
        >>> back.certified, bool((back.image == image).all())
        (True, True)
    """

    def __init__(
        self,
        classifier: Classifier,
        solver: Solver | None = None,
        smooth: float = 1.0,
        rounds: int = 12,
    ) -> None:
        if classifier.training:
            raise ValueError("pictures are explained in evaluation mode; call .eval() first")
        if not 0 <= smooth < float("inf"):
            raise ValueError(f"smooth is a width in pixels, 0 or more; got {smooth}")
        if rounds < 1:
            raise ValueError(f"rounds is at least 1; got {rounds}")
        self.model = _frozen(copy.deepcopy(classifier).double())
        self.values = _values(self.model)
        self.quick = _values(copy.deepcopy(classifier).float())
        self.solver, self.rounds = solver, rounds
        self.smoothed = _gaussian(smooth)
        ends = torch.tensor([0.0, self.model.levels - 1.0], dtype=torch.float64)
        low, high = (
            self.model.pixels.normalized(
                end.expand(self.model.shape[0], 1, 1).to(self.model.device)
            )
            for end in ends
        )
        self.low, self.high = low, high

    def there_and_back(self, image: Tensor) -> Path:
        """The picture, and its features mapped back."""
        x, start = self._begin(image)
        back = self._invert(self._features(x), x, 1.0)
        return Path("Features mapped back", "the same picture, byte for byte", start, (back,))

    def free(self, image: Tensor, partner: Tensor, moves: Sequence[float] = FREE_MOVES) -> Path:
        """Features moved towards those of a partner, all logits left exactly as they are.

        Args:
            image: (C, H, W) uint8.
            partner: another one.
            moves: how far the picture moves in each step: root mean square of the change of
                pixels, as shares of their range.
        """
        x, start = self._begin(image)
        z = self._features(x)
        direction = self._features(self._prepared(partner)) - z
        title = "Moved freely, logits unchanged"
        if not bool(direction.any()):
            note = "the other picture has the same features, so there is nowhere to move them to"
            return Path(title, note, start, (), has_goal=True)
        logits = self.model.head(z)
        steps = self._moved(
            x, lambda length: self._with_logits(z + length * direction, logits), moves
        )
        note = "features moved where the logits do not see it, then inverted; exact until clipped"
        return Path(title, note + _shortfall(steps), start, steps, has_goal=True)

    def free_towards(self, image: Tensor, label: int, moves: Sequence[float] = FREE_MOVES) -> Path:
        """The least change of features that moves the logits towards another class, inverted."""
        x, start = self._begin(image)
        self._check_label(label, start.predicted)
        z = self._features(x)
        logits = self.model.head(z)
        change = torch.zeros_like(logits)
        change[0, label] = logits[0, start.predicted] - logits[0, label]
        change[0, start.predicted] = -change[0, label]
        steps = self._moved(x, lambda length: self._with_logits(z, logits + length * change), moves)
        note = "the least change of the features that moves their logits that way, inverted"
        title = f"Moved freely towards class {label}"
        return Path(title, note + _shortfall(steps), start, steps)

    def _moved(
        self, x: Tensor, features: Callable[[float], Tensor], moves: Sequence[float]
    ) -> tuple[Shown, ...]:
        """Inverses of features that are moved so far that the picture moves by given amounts."""
        length, steps = 1e-4, []
        for moved in moves:
            reached = False
            for _ in range(12):  # the picture moves about in proportion
                found = self._invert(features(length), x, length)
                if not 0 < found.moved_before < float("inf"):
                    length /= 4
                elif 0.8 < found.moved_before / moved < 1.25:
                    reached = True
                    break
                else:
                    length *= min(8.0, max(0.125, moved / found.moved_before))
            steps.append(replace(found, reached=reached))
        return tuple(steps)

    def held(self, image: Tensor, partner: Tensor, shares: Sequence[float] = SHARES) -> Path:
        """Towards the partner as far as that goes with all logits held."""
        x, start = self._begin(image)
        goal = self._prepared(partner)
        every = torch.eye(self.model.classes, dtype=x.dtype, device=x.device)
        target = self.model.head(self._features(x))[0]
        scale = float((self.model.head(self._features(goal))[0] - target).abs().max())
        note = (
            "from the first picture towards the one on the right, as far as it goes while all "
            "logits stay as they are"
        )
        steps, at = [], x
        for share in shares:
            at = self._approach(at, x + share * (goal - x), every, target, scale)
            steps.append(self._invert(self._features(at), x, share))
        return Path("Along pictures, logits held", note, start, tuple(steps), has_goal=True)

    def towards(self, image: Tensor, label: int, shares: Sequence[float] = SHARES) -> Path:
        """The least change of the picture that makes it one of another class.

        At the end the two classes have changed places: their logits' difference is the opposite.
        """
        x, start = self._begin(image)
        predicted = start.predicted
        self._check_label(label, predicted)
        others = [k for k in range(self.model.classes) if k not in (label, predicted)]
        rows = torch.zeros(len(others) + 1, self.model.classes, dtype=x.dtype, device=x.device)
        rows[:, label] = 1.0
        for row, k in enumerate((predicted, *others)):
            rows[row, k] = -1.0
        at_least = torch.arange(len(rows), device=x.device) > 0  # no third class gets in between
        begin = (rows @ self.model.head(self._features(x))[0])[0]
        steps, at = [], x
        for share in shares:
            target = (begin * (1 - 2 * share)).expand(len(rows))
            at = self._approach(at, x, rows, target, 2 * abs(float(begin)), at_least)
            steps.append(self._invert(self._features(at), x, share))
        note = "the least change of pixels that moves the logits of the two classes past each other"
        return Path(f"Along pictures towards class {label}", note, start, tuple(steps))

    def _begin(self, image: Tensor) -> tuple[Tensor, Shown]:
        """The picture as it enters the classifier, and as the first of a path."""
        x = self._prepared(image)
        logits = self.model.head(self._features(x))[0].cpu()
        shown = Shown(0.0, image.cpu(), logits, logits, True, 0.0, 0.0, 0.0, 0.0, 0.0)
        return x, shown

    def _check_label(self, label: int, predicted: int) -> None:
        if not 0 <= label < self.model.classes or label == predicted:
            raise ValueError(
                f"expected another class than {predicted} between 0 and "
                f"{self.model.classes - 1}; got {label}"
            )

    def _prepared(self, image: Tensor) -> Tensor:
        self.model.check_images(image[None])
        if image.dtype != torch.uint8:
            raise ValueError(f"expected a uint8 picture; got {image.dtype}")
        return self.model.prepared(image[None].to(self.model.device))

    def _features(self, x: Tensor) -> Tensor:
        return self.values(self.model.padded(x))

    def _quick_logits(self, x: Tensor) -> Tensor:
        """Logits by features in float32, (batch, classes) float64."""
        return self.model.head(self.quick(self.model.padded(x).float()).double())

    @torch.no_grad()
    def _invert(self, z: Tensor, origin: Tensor, share: float) -> Shown:
        """The picture with these features, and all there is to say about it."""
        model = self.model
        found = model.solve(z, self.solver)
        x = found.images
        sure = bool(found.solution.converged.all()) and bool(x.isfinite().all())
        pixels = model.pixels.denormalized(x)
        wanted, residual = model.head(z)[0].cpu(), float(found.solution.residual.max())
        if not sure:
            black, nothing = model.to_images(origin)[0].cpu() * 0, float("nan")
            unknown = torch.full_like(wanted, nothing)
            nothings = (nothing,) * 4
            return Shown(share, black, wanted, unknown, False, residual, *nothings)
        image = model.to_images(x)
        outside = (pixels < -0.5) | (pixels > model.levels - 0.5)
        before = model.pixels.denormalized(origin).round()  # it was made of bytes
        span = model.levels - 1
        return Shown(
            share=share,
            image=image[0].cpu(),
            wanted=wanted,
            logits=model.head(self._features(model.prepared(image)))[0].cpu(),
            certified=True,
            residual=residual,
            padding_energy=float(found.padding_energy.max()),
            clipped=float(outside.double().mean()),
            moved=float((image.double() - before).square().mean().sqrt()) / span,
            moved_before=float((pixels - before).square().mean().sqrt()) / span,
        )

    def _with_logits(self, z: Tensor, target: Tensor) -> Tensor:
        """Features near z with exactly these logits: Newton steps of least length."""
        model, weight = self.model, self.model.linear.weight
        for _ in range(50):
            left = target - model.head(z)
            if float(left.abs().max()) < 1e-12 * (1 + float(target.abs().max())):
                break
            slope = z.clamp(max=0).exp() if model.config.elu else torch.ones_like(z)
            rows = (weight[:, :, None, None] * slope / slope[0, 0].numel()).flatten(1)
            z = z + (torch.linalg.lstsq(rows @ rows.T, left[0]).solution @ rows).reshape(z.shape)
        return z

    def _approach(
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
            return float(
                0.5 * missing(value).square().sum() + 0.5 * mu * (at - wish).square().sum()
            )

        value, slopes = self._linearized(x, rows)
        best = merit(value, x)
        for _ in range(self.rounds):
            for _ in range(10):
                left = missing(value)
                asked = torch.ones_like(left) > 0 if at_least is None else ~at_least | (left > 0)
                step = self._step(x, wish, slopes[asked], left[asked], mu, damping)
                trial = torch.maximum(torch.minimum(x + step, self.high), self.low)
                with torch.no_grad():
                    found = merit(rows @ self._quick_logits(trial)[0], trial)
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
        free = torch.ones_like(x)
        step = torch.zeros_like(x)
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
            values = (rows * self._quick_logits(copies)).sum(1)
            (slopes,) = torch.autograd.grad(values.sum(), copies)
        return values.detach(), slopes


def _shortfall(steps: Sequence[Shown]) -> str:
    """Words for the note of a path where steps are not as long as they were to be."""
    short = sum(not step.reached for step in steps)
    return f"; {short} of {len(steps)} moves did not come as far as asked" if short else ""


def _frozen(model: Classifier) -> Classifier:
    """The model with the weights of its layers masked and constrained once and for all."""
    for part in model.chain:
        if isinstance(part, MintLayer):
            weights = tuple(weight.detach() for weight in part.weights())
            part.weights = lambda weights=weights: weights  # type: ignore[method-assign, misc]
    return model.requires_grad_(False)


def _values(model: Classifier) -> Callable[[Tensor], Tensor]:
    """The chain of layers alone, of a model whose weights do not change."""
    parts = [
        part.transform if not isinstance(part, MintLayer) else part.evaluator_of_values()
        for part in _frozen(model).chain
    ]

    def values(x: Tensor) -> Tensor:
        for part in parts:
            found = part(x)
            x = found if isinstance(found, Tensor) else found[0]
        return x

    return values


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

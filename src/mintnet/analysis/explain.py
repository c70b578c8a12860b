r"""What an invertible classifier is for: from features back to pictures.

Three questions about a picture, each answered with pictures that can be looked at:

1. *What do its features hold?* Mapped back they give the picture itself.
2. *What can the classifier not tell apart?* The head (ELU, mean, linear) sees features only through
   the logits. Features are moved freely along directions that leave all logits as they are; or the
   picture itself goes towards another one, as far as that goes with all logits held.
3. *What would make it another class?* The least change of the features, moved freely; and the
   least change of the picture.

Every picture shown is the inverse of some features, with its residual check, then without the
padding, clipped and rounded to grey levels. All figures about it are recomputed from that picture.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mintnet.analysis.search import Search
from mintnet.models import Classifier
from mintnet.solvers import Solver

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)
"""How far along each path pictures are shown."""

FREE_MOVES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Root mean square of the pixels' change in a free move, as shares of the range of pixels."""


@dataclass(frozen=True)
class Shown:
    """A picture with its figures, one step of a path.

    Where the inversion is not verified there is no picture: the image is black, and all figures
    about it are NaN.
    """

    share: float  # how far along the path
    image: Tensor  # (C, H, W) uint8, as it is shown: clipped and rounded
    wanted: Tensor  # (classes,) the logits of the features that were inverted
    logits: Tensor  # (classes,) recomputed from the image
    verified: bool = True  # whether the inversion is, in every layer and end to end
    residual: float = 0.0  # of the inversion, end to end
    padding_energy: float = 0.0  # mean square of what landed in the padding, and is not shown
    clipped: float = 0.0  # the share of pixels outside their range before they were clipped
    moved: float = 0.0  # root mean square of the change of pixels, as a share of their range
    moved_before: float = 0.0  # the same before clipping and rounding
    reached: bool = True  # whether a free move came about as far as was asked for

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

    def to_dict(self, start: Tensor) -> dict[str, Any]:
        """The figures as plain data; ``start`` are the logits at the beginning of the path.

        Figures of the picture are None where it is not verified.
        """
        of_picture = {
            "predicted": int(self.logits.argmax()),
            "probability": self.probability,
            "logits": self.logits.tolist(),
            "logit_change": float((self.logits - start).abs().max()),
            "picture_moved": self.moved,
            "picture_moved_before_clipping": self.moved_before,
            "clipped": self.clipped,
            "padding_energy": self.padding_energy,
        }
        return {
            "share": self.share,
            **(of_picture if self.verified else dict.fromkeys(of_picture)),
            "wanted_logits": self.wanted.tolist(),
            "logit_change_before_clipping": float((self.wanted - start).abs().max()),
            "verified": self.verified,
            "residual": self.residual,
            "reached": self.reached,
        }


@dataclass(frozen=True)
class Path:
    """Pictures one after another, each with its figures."""

    title: str  # what happens along it
    note: str  # how to read it
    start: Shown  # the picture that it begins with
    steps: tuple[Shown, ...]
    has_goal: bool = False  # whether it leads towards another picture

    def to_dict(self) -> dict[str, Any]:
        start, *steps = (shown.to_dict(self.start.logits) for shown in (self.start, *self.steps))
        return {"title": self.title, "note": self.note, "start": start, "steps": steps}


class Explainer:
    """Answers questions about pictures; works on copies of the classifier.

    Inverses, and all figures, are computed in float64; the search along pictures in float32.

    Args:
        classifier: in evaluation mode.
        solver: for inverses; the default if not given.
        smooth: the width in pixels of a Gaussian that smooths changes of pixels: of two changes
            that do the same to the logits the smoother one is preferred. 0: none.
        rounds: the most Gauss-Newton steps between two pictures.

    Examples:
        >>> explainer = Explainer(Classifier.preset("digits").eval(), rounds=3)
        >>> image = torch.randint(0, 17, (1, 8, 8), dtype=torch.uint8)
        >>> back = explainer.there_and_back(image).steps[0]
        >>> back.verified, bool((back.image == image).all())
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
        self.model = copy.deepcopy(classifier).double().requires_grad_(False)
        self.search = Search(self.model, smooth, rounds)
        self.solver = solver

    def there_and_back(self, image: Tensor) -> Path:
        """The picture (C, H, W) uint8, and its features mapped back."""
        x, start = self._begin(image)
        back = self._invert(self._features(x), x, 1.0)
        return Path("Features mapped back", "the same picture, byte for byte", start, (back,))

    def free(self, image: Tensor, partner: Tensor, moves: Sequence[float] = FREE_MOVES) -> Path:
        """Features moved towards those of a partner, all logits left exactly as they are.

        ``moves`` says how far the picture moves in each step: root mean square of the change of
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
        at = lambda length: self._with_logits(z + length * direction, logits)  # noqa: E731
        steps = self._moved(x, at, moves)
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

    def held(self, image: Tensor, partner: Tensor, shares: Sequence[float] = SHARES) -> Path:
        """Towards the partner as far as that goes with all logits held."""
        x, start = self._begin(image)
        goal = self._prepared(partner)
        every = torch.eye(self.model.classes, dtype=x.dtype, device=x.device)
        target = self.model.head(self._features(x))[0]
        scale = float((self.model.head(self._features(goal))[0] - target).abs().max())
        steps, at = [], x
        for share in shares:
            at = self.search.approach(at, x + share * (goal - x), every, target, scale)
            steps.append(self._invert(self._features(at), x, share))
        note = (
            "from the first picture towards the one on the right, as far as it goes while all "
            "logits stay as they are"
        )
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
            at = self.search.approach(at, x, rows, target, 2 * abs(float(begin)), at_least)
            steps.append(self._invert(self._features(at), x, share))
        note = "the least change of pixels that moves the logits of the two classes past each other"
        return Path(f"Along pictures towards class {label}", note, start, tuple(steps))

    def _begin(self, image: Tensor) -> tuple[Tensor, Shown]:
        """The picture as it enters the classifier, and as the first of a path."""
        x = self._prepared(image)
        logits = self.model.head(self._features(x))[0].cpu()
        return x, Shown(0.0, image.cpu(), logits, logits)

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
        return self.model.chain.value(self.model.padded(x))

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

    @torch.no_grad()
    def _invert(self, z: Tensor, origin: Tensor, share: float) -> Shown:
        """The picture with these features, and all there is to say about it."""
        model = self.model
        found = model.solve(z, self.solver)
        x = found.images
        wanted, residual = model.head(z)[0].cpu(), float(found.solution.residual.max())
        if not bool(found.solution.converged.all()) or not bool(x.isfinite().all()):
            black, nan = model.to_images(origin)[0].cpu() * 0, float("nan")
            unknown = torch.full_like(wanted, nan)
            return Shown(share, black, wanted, unknown, False, residual, nan, nan, nan, nan)
        pixels, image = model.pixels.denormalized(x), model.to_images(x)
        before = model.pixels.denormalized(origin).round()  # it was made of bytes
        span = model.levels - 1
        outside = (pixels < -0.5) | (pixels > model.levels - 0.5)
        return Shown(
            share=share,
            image=image[0].cpu(),
            wanted=wanted,
            logits=model.head(self._features(model.prepared(image)))[0].cpu(),
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


def _shortfall(steps: Sequence[Shown]) -> str:
    """Words for the note of a path where steps are not as long as they were to be."""
    short = sum(not step.reached for step in steps)
    return f"; {short} of {len(steps)} moves did not come as far as asked" if short else ""

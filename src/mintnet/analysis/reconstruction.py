"""Images through a network and back (Fig. 4b), also by Algorithm 1 step by step (Fig. 4a)."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from mintnet.analysis.layers import LayerRow, layer_rows
from mintnet.bijections import TriangularBijection
from mintnet.models import Classifier, Flow
from mintnet.models.batches import Progress, Solving, join_solutions
from mintnet.precision import true_float32
from mintnet.solvers import FixedPoint, Solution, Solver
from mintnet.solvers.fixed_point import State
from mintnet.solvers.solution import own_scale

ITERATIONS = (1, 2, 4, 8, 16, 32, 60, 90, 120)
DIVISORS = (1.0, 3.5)  # d of the steps α = 1/d: the natural one, and the paper's for MNIST
LEAST = 1e-18  # float32 cannot tell smaller errors apart
FLOOR = 1e-12  # in the search for a step, errors below this are rounding and count as equal


def typical(errors: Tensor) -> Tensor:
    """exp of the mean log error over the last dimension."""
    return errors.double().clamp(min=LEAST).log().mean(-1).exp()


@dataclass(frozen=True)
class Reconstruction:
    """Images and what came back."""

    originals: Tensor  # (N, C, H, W) uint8
    images: Tensor  # (N, C, H, W) uint8, the reconstructions
    errors: Tensor  # (N,) ‖x − y‖² / D with pixels in [0, 1]
    solution: Solution

    @property
    def exact(self) -> int:
        """How many images came back byte for byte."""
        return int((self.originals == self.images).flatten(1).all(1).sum())

    def to_dict(self) -> dict[str, Any]:
        return {
            "images": len(self.originals),
            "byte_exact": self.exact,
            "mean_error": float(self.errors.mean()),
            "typical_error": float(typical(self.errors)),
            "worst_error": float(self.errors.max()),
        }


@torch.no_grad()
def reconstruct(
    flow: Flow, images: Tensor, solver: Solver | None = None, **options: Unpack[Solving]
) -> Reconstruction:
    """Encode uint8 images (N, C, H, W) and decode them again, with the options of `Flow.solve`.

    Examples:
        >>> flow = Flow.preset("digits")
        >>> result = reconstruct(flow, torch.zeros(3, 1, 8, 8, dtype=torch.uint8))
        >>> result.exact, bool(result.errors.max() < 1e-9)
        (3, True)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    solution = flow.solve(flow.encode(images, labels=options.get("labels")), solver, **options)
    errors = pixel_error(flow, images, solution.value)
    return Reconstruction(images, flow.to_images(solution.value), errors, solution)


def pixel_error(flow: Flow, images: Tensor, y: Tensor) -> Tensor:
    """‖x − y‖² / D of images and pixels after the logit, in [0, 1]: (N,). NaN counts as 1."""
    difference = (images.double() + 0.5) / flow.levels - flow.pixels.invert(y.double())
    return difference.square().nan_to_num(nan=1.0).clamp(max=1.0).flatten(1).mean(1)


@dataclass(frozen=True)
class ErrorCurve:
    """Errors for growing numbers of steps of Algorithm 1 in each layer."""

    step: float  # α
    iterations: tuple[int, ...]  # one for each point
    errors: Tensor  # (points, N) ‖x − y‖² / D of each image

    @property
    def label(self) -> str:
        return "α = 1" if self.step == 1 else f"α = 1/{1 / self.step:.4g}"

    @property
    def centre(self) -> list[float]:
        """exp of the mean of the log error, at each point."""
        return typical(self.errors).tolist()

    @property
    def spread(self) -> list[float]:
        """exp of the standard deviation of the log error: the band is centre · spread^±1."""
        return self.errors.double().clamp(min=LEAST).log().std(1, correction=0).exp().tolist()

    def to_dict(self) -> dict[str, Any]:
        curve = {"iterations": list(self.iterations), "error": self.centre, "spread": self.spread}
        return {"divisor": 1 / self.step, "images": self.errors.shape[1], **curve}


@torch.no_grad()
def error_curve(
    flow: Flow,
    images: Tensor,
    step: float = 1.0,
    iterations: Sequence[int] = ITERATIONS,
    progress: Progress | None = None,
) -> ErrorCurve:
    """Invert every layer with T steps of Algorithm 1, unchecked, for each T in ``iterations``."""
    z, errors = flow.encode(images).to(flow.dtype), []
    for number, count in enumerate(iterations, 1):
        errors.append(pixel_error(flow, images, algorithm_1(flow, z, step, count)))
        if progress:
            progress(sum(iterations[:number]), sum(iterations))
    return ErrorCurve(step, tuple(iterations), torch.stack(errors))


@torch.no_grad()
def algorithm_1(flow: Flow, z: Tensor, step: float, count: int) -> Tensor:
    """z after ``count`` unchecked steps of Algorithm 1 a layer, or fewer if no sample moves."""
    solver = FixedPoint(step, allow_any_step=True)
    with true_float32():
        for layer in reversed(flow.given(flow.context(None, len(z))).leaves()):
            if not isinstance(layer, TriangularBijection):
                z = layer.solve(z).value
                continue
            system = layer.system()
            state = State.begin(z, own_scale(z), layer.start(z), system.context)
            for _ in range(count):
                state = solver.advance(state, system.evaluate)
                if bool(state.done.all()):
                    break
            z = state.x
    return z


@dataclass(frozen=True)
class Verification:
    """A reconstruction by a solver that checks residuals, and curves of Algorithm 1 beside it."""

    reconstruction: Reconstruction
    layers: list[LayerRow]
    curves: list[ErrorCurve]
    solver: str  # of the reconstruction

    @property
    def reached(self) -> tuple[str, float]:
        """What the solver of the reconstruction reached, for the plot: a label and its error."""
        back, converged = self.reconstruction, self.reconstruction.solution.converged
        label = f"{self.solver}: {int(converged.sum())} of {len(converged)} verified"
        return label, float(typical(back.errors))

    def to_dict(self) -> dict[str, Any]:
        layers, curves = map(asdict, self.layers), (curve.to_dict() for curve in self.curves)
        return self.reconstruction.to_dict() | {"layers": list(layers), "curves": list(curves)}


def verify(
    flow: Flow,
    images: Tensor,
    solver: Solver | None = None,
    divisors: Sequence[float] = DIVISORS,
    iterations: Sequence[int] = ITERATIONS,
    curve_images: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Reconstruct uint8 images by a solver, and the first of them by Algorithm 1 step by step.

    Examples:
        >>> flow, images = Flow.preset("digits"), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
        >>> found = verify(flow, images, iterations=(1, 20))
        >>> found.reached[0], len(found.curves), len(found.layers)
        ('auto: 2 of 2 verified', 2, 12)
    """
    back = reconstruct(flow, images, solver, progress=progress)
    few = images[:curve_images]
    curves = [error_curve(flow, few, 1 / d, iterations, progress) for d in divisors]
    name = "auto" if solver is None else type(solver).__name__
    return Verification(back, layer_rows(flow.net, back.solution), curves, name)


@dataclass(frozen=True)
class Trial:
    """One candidate in the search for a step of Algorithm 1."""

    divisor: float  # d, which the paper prints as α
    step: float  # 1 / d, the α of Algorithm 1
    error: float  # exp of the mean log reconstruction error
    round: int  # 1 or 2


@torch.no_grad()
def tune_step(
    flow: Flow,
    images: Tensor,
    iterations: int = 120,
    report: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """Steps 1/d for d = 1, 1.5, …, 5, then by 0.05 around the best; the best comes first.

    Each candidate inverts every layer with that many steps of Algorithm 1. The one with the
    least reconstruction error wins; of those at the rounding floor, the step nearest to 1.

    Examples:
        >>> images = torch.randint(0, 17, (2, 1, 8, 8), dtype=torch.uint8)
        >>> tune_step(Flow.preset("digits"), images, iterations=3)[0].divisor < 1.5
        True
    """

    def rank(trial: Trial) -> tuple[float, float]:
        return max(trial.error, FLOOR), abs(trial.divisor - 1)

    z, trials = flow.encode(images).to(flow.dtype), dict[float, Trial]()
    hundredths = range(100, 501, 50)
    for number in (1, 2):
        for d in (k / 100 for k in hundredths if k > 50):  # a step of 2 or more converges nowhere
            if d not in trials:
                error = pixel_error(flow, images, algorithm_1(flow, z, 1 / d, iterations))
                trials[d] = Trial(d, 1 / d, float(typical(error)), number)
                report(trials[d])
        best = round(100 * min(trials.values(), key=rank).divisor)
        hundredths = range(best - 50, best + 51, 5)
    return sorted(trials.values(), key=rank)


@dataclass(frozen=True)
class RoundTrip:
    """How features were mapped back to images; figures are NaN where an inversion has no value."""

    precision: str  # float32 or float64
    images: int
    verified: int  # images that are, in every layer and end to end
    residual: float  # the worst, end to end
    worst_pixel_error: float  # in grey levels
    byte_exact: int  # images that come back byte for byte; none of NaN does
    padding_energy: float  # mean square of the padding, over all images
    layers: tuple[LayerRow, ...]

    def __str__(self) -> str:
        return (
            f"{self.precision}: {self.verified} of {self.images} verified in every layer and end "
            f"to end (residual {self.residual:.1e}); {self.byte_exact} images back byte for byte, "
            f"worst pixel off by {self.worst_pixel_error:.1e} grey levels, energy in the padding "
            f"{self.padding_energy:.1e}"
        )


@torch.no_grad()
def round_trip(
    classifier: Classifier,
    images: Tensor,
    dtype: torch.dtype = torch.float64,
    solver: Solver | None = None,
    batch_size: int = 8,
    progress: Progress | None = None,
) -> RoundTrip:
    """Map the features of uint8 images (N, C, H, W) back, by a copy of the classifier in ``dtype``.

    Examples:
        >>> clf = Classifier.preset("digits").eval()
        >>> trip = round_trip(clf, torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8))
        >>> trip.verified, trip.worst_pixel_error < 1e-6, len(trip.layers)
        (3, True, 8)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    model = copy.deepcopy(classifier).to(dtype)
    solutions, figures = [], list[Tensor]()  # of each image: pixel error, exact, padding energy
    with true_float32():
        for part in images.to(model.device).split(batch_size):
            x = model.prepared(part)
            found = model.solve(model.chain.value(model.padded(x)), solver)
            light = tuple(replace(one, value=one.value[:, :0]) for one in found.solution.parts)
            solutions.append(replace(found.solution, parts=light))
            levels = model.pixels.denormalized(found.images) - model.pixels.denormalized(x)
            # Bytes made of NaN would be black, which is a picture.
            same = model.to_images(found.images.nan_to_num()) == part
            exact = (same & found.images.isfinite()).flatten(1).all(1)
            rows = (levels.abs().flatten(1).amax(1), exact, found.padding_energy)
            figures.append(torch.stack([row.double().cpu() for row in rows]))
            if progress:
                progress(sum(row.shape[1] for row in figures), len(images))
    whole, (pixel, exact, padding) = join_solutions(solutions), torch.cat(figures, 1)
    return RoundTrip(
        precision=str(dtype).removeprefix("torch."),
        images=len(images),
        verified=int(whole.converged.sum()),
        residual=float(whole.residual.max()),
        worst_pixel_error=float(pixel.max()),
        byte_exact=int(exact.sum()),
        padding_energy=float(padding.mean()),
        layers=tuple(layer_rows(model.chain, whole)),
    )

"""Images to features and back through a classifier: residual checks, and how errors grow."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.analysis.layers import LayerRow, layer_numbers, layer_rows
from mintnet.models import Classifier
from mintnet.models.batches import Progress
from mintnet.precision import true_float32
from mintnet.solvers import Solution, Solver


@dataclass(frozen=True)
class RoundTrip:
    """How features were mapped back to images, in one precision.

    An inversion that failed may have no value: figures over all images are NaN or infinite then.
    """

    precision: str  # float32 or float64
    images: int
    verified: int  # images that are, in every layer and end to end
    residual: float  # the worst, end to end
    worst_pixel_error: float  # in grey levels
    mean_square_error: float  # of what enters the network (normalised pixels), over all entries
    byte_exact: int  # images that come back byte for byte; none of NaN does
    padding_energy: float  # mean square of the padding, over all images
    worst_padding_energy: float  # of a single image
    layers: tuple[LayerRow, ...]

    def __str__(self) -> str:
        return (
            f"{self.precision}: {self.verified} of {self.images} verified in every layer and end "
            f"to end (residual {self.residual:.1e}); {self.byte_exact} images back byte for byte, "
            f"worst pixel off by {self.worst_pixel_error:.1e} grey levels, mean square error "
            f"{self.mean_square_error:.1e}, energy in the padding {self.padding_energy:.1e}"
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
    """Map the features of uint8 images (N, C, H, W) back, and compare with the way forward.

    The classifier is in evaluation mode, and a copy of it in ``dtype`` does the work.

    Examples:
        >>> clf = Classifier.preset("digits").eval()
        >>> trip = round_trip(clf, torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8))
        >>> trip.verified, trip.worst_pixel_error < 1e-6, len(trip.layers)
        (3, True, 8)
    """
    if not len(images):
        raise ValueError("expected at least one image; got none")
    model = copy.deepcopy(classifier).to(dtype)
    solutions: list[Solution] = []
    squares: list[Tensor] = []  # errors at the input of each layer
    figures: list[Tensor] = []  # of each image: pixel error, square error, exact, padding energy
    with true_float32():
        for part in images.to(model.device).split(batch_size):
            x = model.prepared(part)
            inputs, features = _forward(model, model.padded(x))
            found = model.solve(features, solver)
            squares.append(_square_errors(inputs, found.solution))
            light = tuple(replace(one, value=one.value[:, :0]) for one in found.solution.parts)
            solutions.append(replace(found.solution, parts=light))
            levels = model.pixels.denormalized(found.images) - model.pixels.denormalized(x)
            # Bytes made of NaN would be black, which is a picture.
            same = model.to_images(found.images.nan_to_num()) == part
            rows = (
                levels.abs().flatten(1).amax(1),
                (found.images - x).square().flatten(1).mean(1),
                (same & found.images.isfinite()).flatten(1).all(1),
                found.padding_energy,
            )
            figures.append(torch.stack([row.double().cpu() for row in rows]))
            if progress:
                progress(sum(len(one.residual) for one in solutions), len(images))
    pixel, square, exact, padding = torch.cat(figures, 1)
    errors = torch.cat(squares, 1).mean(1).sqrt().tolist()
    return RoundTrip(
        precision=str(dtype).removeprefix("torch."),
        images=len(images),
        verified=sum(int(one.converged.sum()) for one in solutions),
        residual=float(torch.cat([one.residual for one in solutions]).max()),
        worst_pixel_error=float(pixel.max()),
        mean_square_error=float(square.mean()),
        byte_exact=int(exact.sum()),
        padding_energy=float(padding.mean()),
        worst_padding_energy=float(padding.max()),
        layers=tuple(layer_rows(model.chain, *solutions, errors=errors)),
    )


def _forward(model: Classifier, x: Tensor) -> tuple[dict[int, Tensor], Tensor]:
    """What enters each layer, by the place of its first part in the chain, and the features."""
    leaves, inputs = model.chain.leaves(), dict[int, Tensor]()
    for place, (number, leaf) in enumerate(zip(layer_numbers(leaves), leaves, strict=True)):
        if number > len(inputs):
            inputs[place] = x
        x = leaf.transform(x)[0]
    return inputs, x


def _square_errors(inputs: dict[int, Tensor], solution: Solution) -> Tensor:
    """The mean square error at the input of each layer, for each image: (layers, batch)."""
    differences = (solution.parts[-1 - place].value - x for place, x in inputs.items())
    return torch.stack([d.double().square().flatten(1).mean(1).cpu() for d in differences])

"""Images to features and back through a classifier, with residual checks."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mintnet.analysis.layers import LayerRow, layer_rows
from mintnet.models import Classifier
from mintnet.models.batches import Progress
from mintnet.precision import true_float32
from mintnet.solvers import Solver


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
                progress(sum(len(one.residual) for one in solutions), len(images))
    pixel, exact, padding = torch.cat(figures, 1)
    return RoundTrip(
        precision=str(dtype).removeprefix("torch."),
        images=len(images),
        verified=sum(int(one.converged.sum()) for one in solutions),
        residual=float(torch.cat([one.residual for one in solutions]).max()),
        worst_pixel_error=float(pixel.max()),
        byte_exact=int(exact.sum()),
        padding_energy=float(padding.mean()),
        layers=tuple(layer_rows(model.chain, *solutions)),
    )

"""What a model is made of, and how an inversion went, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mintnet.bijections import Bijection, TriangularBijection
from mintnet.models import Flow
from mintnet.models.base import Model
from mintnet.solvers import Solution

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def class_names(data: str | None, classes: int) -> tuple[str, ...]:
    """The names of the classes of a data set; their numbers where they have no others."""
    return CIFAR10 if data == "cifar10" and classes == 10 else tuple(map(str, range(classes)))


def kind_of(model: Model) -> str:
    """What a model is, in words."""
    kinds = {"flow": "a density model", "classifier": "an invertible classifier"}
    kinds |= {"vector-flow": "a density model of points", "table": "a density model of a table"}
    return kinds.get(model.kind, "a ResNet")


def facts(model: Model) -> list[tuple[str, str]]:
    """A model in words, as pairs of a name and a value."""
    about = model.describe()
    found: dict[str, Any] = {"entries": model.shape[0]}  # of a point, or a row of a table
    if len(model.shape) == 3:
        found = {"images": f"{by(model.shape)}, {model.levels} levels"}
    found |= about.get("net", {})
    found |= {name: about[name] for name in ("logit_lambda", "classes") if name in about}
    found["parameters"] = f"{model.parameter_count():,}"
    return [
        (name.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, tuple) else str(v))
        for name, v in found.items()
        if name != "shape"
    ]


def by(numbers: Sequence[int]) -> str:
    """Numbers with × between them."""
    return " × ".join(map(str, numbers))


def solved_layers(model: Model) -> list[TriangularBijection]:
    """The layers that a solver is asked for, in the order of their numbers; a ResNet has none."""
    net = getattr(model, "net" if isinstance(model, Flow) else "chain", None)
    return [leaf for leaf in net.leaves() if isinstance(leaf, TriangularBijection)] if net else []


@dataclass(frozen=True)
class LayerRow:
    """One triangular layer in an inversion, with the parts without a number before it."""

    number: int  # counted from 1 at the image's side
    name: str
    median_steps: float
    most_steps: int
    residual: float  # the worst, as a share of the largest |z| that enters the layer's inverse
    failures: int  # samples that are not verified


def layer_rows(net: Bijection, solution: Solution) -> list[LayerRow]:
    """The layers of an inverted net, from the image's side on."""
    rows, failures = list[LayerRow](), 0
    for leaf, part in zip(net.leaves(), reversed(solution.parts), strict=True):
        failures += int((~part.converged).sum())
        if isinstance(leaf, TriangularBijection):
            median, most = float(part.steps.double().median()), int(part.steps.max())
            number, residual = len(rows) + 1, float(part.residual.max())
            rows.append(LayerRow(number, leaf.name, median, most, residual, failures))
            failures = 0
    return rows


def residual_check(net: Bijection, solution: Solution) -> dict[str, Any]:
    """The residual check of an inversion as plain data."""
    worst = max(layer_rows(net, solution), key=lambda row: row.residual, default=None)
    return {
        "samples": len(solution.residual),
        "verified": int(solution.converged.sum()),
        "end_to_end_residual": float(solution.residual.max()),
        "worst_layer_residual": worst.residual if worst else None,
        "worst_layer": worst.number if worst else None,
    }

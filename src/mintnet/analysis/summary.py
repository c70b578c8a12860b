"""Models in words: what they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from mintnet.analysis.layers import solved_layers
from mintnet.bijections import Bijection
from mintnet.flows import RealNVPCoupling
from mintnet.models import Classifier, Flow, ResNet
from mintnet.models.base import Model

CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"


@dataclass(frozen=True)
class Headline:
    """A figure that stands at the top of a page or a screen."""

    value: str
    label: str
    note: str = ""
    good: bool = True  # whether it is as it should be


def class_names(data: str | None, classes: int) -> tuple[str, ...]:
    """The names of the classes of a data set; their numbers where they have no others.

    Examples:
        >>> class_names("cifar10", 10)[3], class_names("mnist", 10)[3]
        ('cat', '3')
    """
    names = tuple(CIFAR10.split())
    return names if data == "cifar10" and classes == 10 else tuple(map(str, range(classes)))


def kind_of(model: Model) -> str:
    """What a model is, in words."""
    kinds = {"flow": "a density model", "classifier": "an invertible classifier"}
    return kinds.get(model.kind, "a ResNet")


def layer_sizes(model: Model) -> list[tuple[str, int]]:
    """Name and number of parameters of each layer that an inverse solves, by its number.

    Examples:
        >>> layer_sizes(Flow.preset("digits"))[0]
        ('lower MintLayer 1×8×8, K = 16', 1537)
    """
    if isinstance(model, Flow):
        return [(layer.name, _size(layer)) for layer in solved_layers(model.net)]
    chain = model.chain if isinstance(model, Classifier) else None
    return [(layer.name, _size(layer)) for layer in solved_layers(chain)] if chain else []


def facts(model: Model) -> list[tuple[str, str]]:
    """A model in words, as pairs of a name and a value.

    Examples:
        >>> facts(Flow.preset("digits"))[0]
        ('images', '1 × 8 × 8, 17 levels')
    """
    found: dict[str, object] = {"images": f"{by(model.shape)}, {model.levels} levels"}
    if isinstance(model, Flow | Classifier):
        config = model.net.config if isinstance(model, Flow) else model.config
        found |= {
            "pairs of layers in each stage": _list(config.pairs),
            "filters K in each stage": _list(config.filters),
            "activation": config.activation,
            "kernel": by((config.kernel_size, config.kernel_size)),
            "form of t": config.t_form,
        }
    if isinstance(model, Flow):
        found |= {
            "Mint layers": len(model.net.layers()),
            "couplings after squeezes": _couplings(model),
            "λ of the logit": f"{model.logit.lam:g}",
            "centre of the logit": f"{model.logit.centre:g}",
        }
    if isinstance(model, Classifier):
        found |= {
            "padded to": f"{model.config.width} channels",
            "features": by(model.feature_shape),
            "ELU before the pooling": "yes" if model.config.elu else "no",
        }
    if isinstance(model, ResNet):
        found |= {
            "blocks in each stage": _list(model.config.blocks),
            "filters in each stage": _list(model.config.widths),
        }
    if isinstance(model, Classifier | ResNet):
        found["classes"] = model.classes
    found["parameters"] = f"{model.parameter_count():,}"
    return [(name, str(value)) for name, value in found.items()]


def by(numbers: tuple[int, ...]) -> str:
    """Numbers with × between them."""
    return " × ".join(map(str, numbers))


def _couplings(flow: Flow) -> str:
    found = [part for part in flow.net.leaves() if isinstance(part, RealNVPCoupling)]
    size = sum(map(_size, found))
    return (
        f"{len(found)} of width {flow.net.config.couplings}, {size:,} parameters"
        if found
        else "none"
    )


def _size(layer: Bijection) -> int:
    count = getattr(layer, "parameter_count", None)
    return count() if count else sum(parameter.numel() for parameter in layer.parameters())


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))

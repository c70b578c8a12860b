"""Models in words: what they are made of."""

from __future__ import annotations

from dataclasses import dataclass

from mintnet.analysis.layers import leaves_of, solved_layers
from mintnet.bijections import Bijection, TriangularBijection
from mintnet.models import Classifier, Flow, ResNet
from mintnet.models.labelled import ImageClassifier

CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "cifar10": (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )
}


@dataclass(frozen=True)
class Headline:
    """A figure that stands at the top of a page or a screen.

    Attributes:
        value: the figure itself.
        label: what it is.
        note: a line below it.
        good: whether it is as it should be.
    """

    value: str
    label: str
    note: str = ""
    good: bool = True


def class_names(data: str | None, classes: int) -> tuple[str, ...]:
    """The names of the classes of a data set; their numbers where they have no others.

    Examples:
        >>> class_names("cifar10", 10)[3], class_names("mnist", 10)[3]
        ('cat', '3')
    """
    names = CLASS_NAMES.get(data or "", ())
    return names if len(names) == classes else tuple(map(str, range(classes)))


def kind_of(model: Flow | ImageClassifier) -> str:
    """What a model is, in words."""
    if isinstance(model, Flow):
        return "a density model"
    return "an invertible classifier" if isinstance(model, Classifier) else "a ResNet"


def parameter_count(model: Flow | ImageClassifier) -> int:
    """Weights that are not masked, and all other parameters."""
    return model.net.parameter_count() if isinstance(model, Flow) else model.parameter_count()


def layer_sizes(model: Flow | ImageClassifier) -> list[tuple[str, int]]:
    """Name and number of parameters of each layer that an inverse solves, by its number.

    Examples:
        >>> layer_sizes(Flow.preset("digits"))[0]
        ('lower MintLayer 1×8×8, K = 16', 1537)
    """
    net = _net(model)
    return [] if net is None else [(layer.name, _size(layer)) for layer in solved_layers(net)]


def facts(model: Flow | ImageClassifier) -> list[tuple[str, str]]:
    """A model in words, as pairs of a name and a value.

    Examples:
        >>> facts(Flow.preset("digits"))[0]
        ('images', '1 × 8 × 8, 17 levels')
    """
    shape = " × ".join(map(str, model.shape))
    found = [("images", f"{shape}, {model.levels} levels")]
    if isinstance(model, Flow):
        config = model.net.config
        found += [
            ("pairs of layers in each stage", _words(config.pairs)),
            ("filters K in each stage", _words(config.filters)),
            ("Mint layers", str(len(model.net.layers()))),
            ("couplings after squeezes", _couplings(model)),
            ("activation", config.activation),
            ("kernel", f"{config.kernel_size} × {config.kernel_size}"),
            ("form of t", config.t_form),
            ("λ of the logit", f"{model.logit.lam:g}"),
            ("centre of the logit", f"{model.logit.centre:g}"),
        ]
    else:
        found.append(("classes", str(model.classes)))
    if isinstance(model, Classifier):
        found += [
            ("padded to", f"{model.config.width} channels"),
            ("pairs of layers in each stage", _words(model.config.pairs)),
            ("filters K in each stage", _words(model.config.filters)),
            ("features", " × ".join(map(str, model.feature_shape))),
            ("activation", model.config.activation),
            ("ELU before the pooling", "yes" if model.config.elu else "no"),
            ("form of t", model.config.t_form),
        ]
    if isinstance(model, ResNet):
        found += [
            ("blocks in each stage", _words(model.config.blocks)),
            ("filters in each stage", _words(model.config.widths)),
        ]
    return [*found, ("parameters", f"{parameter_count(model):,}")]


def _net(model: Flow | ImageClassifier) -> Bijection | None:
    if isinstance(model, Flow):
        return model.net
    return model.chain if isinstance(model, Classifier) else None


def _couplings(flow: Flow) -> str:
    from mintnet.flows import RealNVPCoupling

    found = [part for part in leaves_of(flow.net) if isinstance(part, RealNVPCoupling)]
    if not found:
        return "none"
    size = sum(parameter.numel() for part in found for parameter in part.parameters())
    return f"{len(found)} of width {flow.net.config.couplings}, {size:,} parameters"


def _size(layer: TriangularBijection) -> int:
    count = getattr(layer, "parameter_count", None)
    return count() if count else sum(parameter.numel() for parameter in layer.parameters())


def _words(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))

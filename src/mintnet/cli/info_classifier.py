"""`mintnet info` on a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from mintnet.cli.output import console, in_words, strong
from mintnet.models import CLASSIFIERS, Classifier, ResNet
from mintnet.models.labelled import ImageClassifier
from mintnet.models.storage import SHIPPED

PRESETS = (*(f"{name}-classifier" for name in CLASSIFIERS), "mnist-resnet", "cifar10-resnet")


def info_classifier(name: str) -> dict[str, Any] | None:
    """Facts about a classifier or a preset of one; None if it is neither."""
    from mintnet.cli.classifier import is_classifier, open_classifier

    config: dict[str, Any] = {}
    if name in PRESETS and name not in SHIPPED and not Path(name).exists():
        kind = ResNet if name.endswith("-resnet") else Classifier
        model: ImageClassifier = kind.preset(name)
        origin = "preset, fresh weights"
    elif is_classifier(name):
        opened = open_classifier(name, "cpu")
        model, config = opened.model, opened.config
        trained = name in SHIPPED and not Path(name).exists()
        origin = "comes with the package, trained" if trained else str(opened.folder)
    else:
        return None
    known = {"kind", "net", "format", "pixels", "classes"}
    extra = {key: value for key, value in config.items() if key not in known}
    facts = classifier_facts(model)
    _print(name, origin, [*facts, *((key, in_words(value)) for key, value in extra.items())], model)
    layers = model.layers() if isinstance(model, Classifier) else []
    return {
        "model": name,
        "origin": origin,
        **model.describe(),
        "parameters": model.parameter_count(),
        "layers": [{"name": layer.name, "parameters": layer.parameter_count()} for layer in layers],
        **extra,
    }


def classifier_facts(model: ImageClassifier) -> list[tuple[str, str]]:
    """A classifier in words."""
    shape = " × ".join(map(str, model.shape))
    facts = [("images", f"{shape}, {model.levels} levels"), ("classes", str(model.classes))]
    if isinstance(model, Classifier):
        config = model.config
        facts += [
            ("padded to", f"{config.width} channels"),
            ("pairs of layers in each stage", ", ".join(map(str, config.pairs))),
            ("filters K in each stage", ", ".join(map(str, config.filters))),
            ("features", " × ".join(map(str, model.feature_shape))),
            ("activation", config.activation),
            ("ELU before the pooling", "yes" if config.elu else "no"),
            ("form of t", config.t_form),
        ]
    elif isinstance(model, ResNet):
        facts += [
            ("blocks in each stage", ", ".join(map(str, model.config.blocks))),
            ("filters in each stage", ", ".join(map(str, model.config.widths))),
        ]
    return [*facts, ("parameters", f"{model.parameter_count():,}")]


def _print(name: str, origin: str, facts: list[tuple[str, str]], model: ImageClassifier) -> None:
    out = console()
    kind = "an invertible classifier" if isinstance(model, Classifier) else "a ResNet"
    out.print(f"{strong(name)}  {kind} ({escape(origin)})")
    table = Table(box=None, show_header=False, pad_edge=False)
    for label, value in facts:
        table.add_row(label, escape(value))
    out.print(table)

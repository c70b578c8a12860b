"""How a preset is trained: everything that decides a run's weights, apart from seed and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mintnet.training.augment import AUGMENTATIONS

SCHEDULES = ("step", "cosine", "linear")
PRECISIONS = ("auto", "float32", "tf32", "bf16", "float64")


@dataclass(frozen=True)
class Recipe:
    """The settings of one run. Losses are in nats per image, which is what ``eps`` belongs to.

    Shares of the run instead of epochs keep a schedule in shape when its length is changed.

    Attributes:
        batch_size: images behind one step of the optimizer, over all devices together.
        epochs: length of the run, in passes over the training images.
        max_steps: length in steps instead, where that is shorter; 0 for no such limit.
        learning_rate: at its highest.
        schedule: ``step`` (times ``decay`` at each milestone), ``cosine`` (to 0) or ``linear``
            (constant for ``hold`` of the run, then straight to 0).
        milestones: of ``step``, as shares of the run.
        decay: of ``step``.
        hold: of ``linear``, as a share of the run.
        warmup: steps over which the learning rate rises from 0.
        amsgrad: divide by the largest average of squared gradients so far (AMSGrad, the paper's),
            instead of the present one (Adam).
        muon: kernels move along orthogonal matrices (`Muon`); what is said of AMSGrad and Adam
            holds for the rest of the parameters.
        unmasked_step: of Muon: the step of kernels without a mask, such as those of couplings, as
            a share of the step of masked ones.
        eps: of AMSGrad or Adam.
        weight_decay: of AMSGrad or Adam.
        decoupled: subtract the weight decay from the weights themselves (AdamW), instead of
            adding it to the gradient.
        label_smoothing: of classifiers, in training alone: the share of the truth that is spread
            over all classes.
        ema: decay of the running average of the weights, which is then what is evaluated and
            saved; 0 for none.
        clip: largest norm of the gradient, in nats per image; 0 for no clipping.
        accumulate: pieces into which each process cuts its part of a batch, to save memory.
        precision: ``float32``, ``tf32``, ``bf16`` (convolutions alone), ``float64``, or ``auto``:
            bf16 on a GPU that has it, else float32.
        augmentation: of training images: ``none``, ``flip`` (left to right, every second time),
            ``crop`` (moved by up to 4 pixels) or ``crop-flip``.
        validation: share of the training images that is held out to choose the best weights.

    Examples:
        >>> Recipe(epochs=10).changed(batch_size=64, epochs=None).batch_size
        64
    """

    batch_size: int = 32
    epochs: int = 100
    max_steps: int = 0
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    milestones: tuple[float, ...] = ()
    decay: float = 0.1
    hold: float = 0.5
    warmup: int = 0
    amsgrad: bool = True
    muon: bool = False
    unmasked_step: float = 1.0
    eps: float = 1e-4
    weight_decay: float = 0.0
    decoupled: bool = False
    label_smoothing: float = 0.0
    ema: float = 0.0
    clip: float = 0.0
    accumulate: int = 1
    precision: str = "auto"
    augmentation: str = "none"
    validation: float = 0.05

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", tuple(self.milestones))
        for name, choices in (
            ("schedule", SCHEDULES),
            ("precision", PRECISIONS),
            ("augmentation", AUGMENTATIONS),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
        for name in ("batch_size", "epochs", "accumulate"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        for name in ("learning_rate", "eps", "unmasked_step"):
            if not 0 < (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must be positive; got {value}")
        for name in ("max_steps", "warmup", "weight_decay", "clip"):
            if not 0 <= (value := getattr(self, name)) < float("inf"):
                raise ValueError(f"{name} must not be negative; got {value}")
        for name in ("ema", "validation", "hold", "label_smoothing"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"{name} must lie in [0, 1); got {value}")
        if not all(0 < share < 1 for share in self.milestones):
            raise ValueError(f"milestones are shares of the run in (0, 1); got {self.milestones}")
        if self.muon and (self.weight_decay or self.decoupled):
            raise ValueError("there is no weight decay with Muon; leave out one of the two")
        if not self.unmasked_step <= 1:
            raise ValueError(f"unmasked_step is a share, 1 at most; got {self.unmasked_step}")
        if self.unmasked_step != 1 and not self.muon:
            raise ValueError("unmasked_step is of Muon; set muon too, or leave it out")

    def changed(self, **overrides: Any) -> Recipe:
        """This recipe with other values; None leaves a value as it is."""
        return replace(self, **{k: v for k, v in overrides.items() if v is not None})

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data that JSON holds."""
        return {**asdict(self), "milestones": list(self.milestones)}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Recipe:
        """The reverse of `to_dict`; names that this version does not know are an error."""
        known = {field.name for field in fields(Recipe)}
        if unknown := sorted(values.keys() - known):
            raise ValueError(f"unknown setting {unknown[0]!r}; expected {', '.join(sorted(known))}")
        return Recipe(**values)


# The paper's, for its classifiers and the ResNets beside them.
_CLASSIFIER = Recipe(batch_size=128, epochs=200, weight_decay=1e-4, augmentation="crop")

RECIPES: dict[str, Recipe] = {
    # Chosen here: two minutes on two cores.
    "digits": Recipe(epochs=30, learning_rate=2e-2, clip=500.0),
    # The paper's: 400 epochs, a tenth of the learning rate from epochs 250 and 350 on.
    "mnist": Recipe(epochs=400, schedule="step", milestones=(0.625, 0.875)),
    "cifar10": Recipe(epochs=200, augmentation="flip"),
    # 350,000 steps come before the tenth epoch ends.
    "imagenet32": Recipe(epochs=10, max_steps=350_000),
    # For a few thousand pictures of one's own.
    "folder": Recipe(epochs=100, learning_rate=2e-3, clip=3000.0, ema=0.999, augmentation="flip"),
    # Chosen here: a minute on two cores.
    "digits-classifier": _CLASSIFIER.changed(
        batch_size=64, epochs=40, learning_rate=4e-3, eps=1e-6, warmup=20
    ),
    "mnist-classifier": _CLASSIFIER,
    "cifar10-classifier": _CLASSIFIER.changed(augmentation="crop-flip"),
    "mnist-resnet": _CLASSIFIER,
    "cifar10-resnet": _CLASSIFIER.changed(augmentation="crop-flip"),
}

KINDS = ("classifier", "resnet")
"""What a preset of classifiers ends with, after the name of its data set."""


def recipe_for(preset: str) -> Recipe:
    """The recipe of a preset.

    Examples:
        >>> recipe_for("mnist").epochs
        400
        >>> recipe_for("minst")
        Traceback (most recent call last):
        ValueError: unknown preset 'minst'; choose one of digits, mnist, cifar10, imagenet32, ...
    """
    if preset not in RECIPES:
        raise ValueError(f"unknown preset {preset!r}; choose one of {', '.join(RECIPES)}")
    return RECIPES[preset]


def data_and_kind(preset: str) -> tuple[str, str]:
    """The data set of a preset, and what is trained on it: a flow, a classifier or a resnet.

    Examples:
        >>> data_and_kind("mnist-classifier"), data_and_kind("digits")
        (('mnist', 'classifier'), ('digits', 'flow'))
    """
    data, _, kind = preset.rpartition("-")
    return (data, kind) if kind in KINDS else (preset, "flow")

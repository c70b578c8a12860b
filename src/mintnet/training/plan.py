"""What a run is: the choices that fix its weights, and how they are matched when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from mintnet.training.files import RunError
from mintnet.training.recipe import Recipe, recipe_for

_RECIPE = {field.name for field in fields(Recipe)}


@dataclass(frozen=True)
class Plan:
    """A preset with every choice made.

    Attributes:
        preset: names a model and its data.
        recipe: how it is trained.
        seed: of the first weights, the order of the images and the noise.
        data: the folder with the data set's files.
        size: of the images of a ``folder``.
        grey: for a ``folder``.
        pairs: of each stage, where they are not the preset's.
        filters: of each stage, where they are not the preset's.
        kernel_size: of masked convolutions, where it is not the preset's.
        couplings: their width, where it is not the preset's.
        logit_lambda: where it is not the preset's.
        centre: of the logit, where it is not 0.
        init: a model to begin with instead of fresh weights.

    Examples:
        >>> Plan.of("digits", epochs=3, seed=None).recipe.epochs
        3
    """

    preset: str
    recipe: Recipe
    seed: int = 0
    data: str | None = None
    size: int | None = None
    grey: bool = False
    pairs: tuple[int, ...] | None = None
    filters: tuple[int, ...] | None = None
    kernel_size: int | None = None
    couplings: int | None = None
    logit_lambda: float | None = None
    centre: float | None = None
    init: str | None = None

    @staticmethod
    def of(preset: str, **given: Any) -> Plan:
        """The preset's recipe with what is given put over it; None means not given."""
        given = _given(given)
        if given.get("muon"):  # which has no weight decay: a preset's is not meant
            given.setdefault("weight_decay", 0.0)
        recipe = recipe_for(preset).changed(**{k: v for k, v in given.items() if k in _RECIPE})
        for name, schedule in (("milestones", "step"), ("decay", "step"), ("hold", "linear")):
            if name in given and recipe.schedule != schedule:
                raise ValueError(
                    f"{name} is of the {schedule} schedule; this run has {recipe.schedule}: give "
                    f"--schedule {schedule}, or leave it out"
                )
        return Plan(preset, recipe, **{k: v for k, v in given.items() if k not in _RECIPE})

    @staticmethod
    def resumed(saved: Mapping[str, Any], run: str, preset: str, **given: Any) -> Plan:
        """The plan of a run folder; what is given must not contradict it.

        Only the place of the data may change: the images themselves are compared elsewhere.
        """
        try:
            values = dict(saved["plan"])
            recipe = Recipe.from_dict(values.pop("recipe"))
            for name in ("pairs", "filters"):
                values[name] = values[name] and tuple(values[name])
            plan = Plan(recipe=recipe, **values)
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{run}/run.json is damaged ({error}); choose another --run") from error
        if plan.preset != preset:
            raise RunError(
                f"{run} is a run of preset {plan.preset}, not {preset}; name another folder with "
                f"--run"
            )
        given = _given(given)
        for name, value in given.items():
            was = getattr(recipe if name in _RECIPE else plan, name)
            if name != "data" and was != value:
                raise RunError(
                    f"{run} was begun with {name.replace('_', ' ')} {was}, not {value}; resume it "
                    f"without that option, or name another folder with --run"
                )
        return plan if "data" not in given else Plan(**{**vars(plan), "data": given["data"]})

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data that JSON holds."""
        return {**asdict(self), "recipe": self.recipe.to_dict()}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were given, with lists as tuples, so that they compare."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in options.items()
        if value is not None
    }

"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from mintnet.training.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """The learning rate of step 0, 1, …, total − 1.

    Nothing is carried from step to step, so a resumed run needs no state for it.

    Examples:
        >>> recipe = Recipe(learning_rate=1.0, schedule="step", milestones=(0.5,))
        >>> [learning_rate(recipe, step, 4) for step in range(4)]
        [1.0, 1.0, 0.1, 0.1]
        >>> recipe = Recipe(learning_rate=1.0, schedule="linear", hold=0.5)
        >>> [learning_rate(recipe, step, 4) for step in range(4)]
        [1.0, 1.0, 1.0, 0.5]
    """
    share = step / max(total, 1)
    if recipe.schedule == "step":
        factor = recipe.decay ** sum(share >= milestone for milestone in recipe.milestones)
    elif recipe.schedule == "cosine":
        factor = 0.5 * (1 + math.cos(math.pi * share))
    else:
        factor = min(1.0, (1 - share) / (1 - recipe.hold))
    if recipe.warmup:
        factor *= min(1.0, (step + 1) / recipe.warmup)
    return recipe.learning_rate * factor

"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from mintnet.training.recipe import Recipe

LESS = 0.7
"""What is left of the learning rate after each fall."""
RISE = 200
"""Steps over which the learning rate rises after a fall, at the least; fewer in a short run."""


def learning_rate(recipe: Recipe, step: int, total: int, falls: int = 0, fell_at: int = 0) -> float:
    """The learning rate of step 0, 1, …, total − 1.

    Nothing else is carried from step to step, so a resumed run needs no other state for it. After
    a fall, back to averaged weights and without moments, it is lower, and rises anew.

    Examples:
        >>> recipe = Recipe(learning_rate=1.0, schedule="step", milestones=(0.5,))
        >>> [learning_rate(recipe, step, 4) for step in range(4)]
        [1.0, 1.0, 0.1, 0.1]
        >>> recipe = Recipe(learning_rate=1.0, schedule="linear", hold=0.5)
        >>> [learning_rate(recipe, step, 4) for step in range(4)]
        [1.0, 1.0, 1.0, 0.5]
        >>> [round(learning_rate(recipe, n, 2000, falls=1, fell_at=500), 2) for n in (599, 999)]
        [0.35, 0.7]
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
    if falls:
        rise = min(max(RISE, recipe.warmup), total // 10 or 1)
        factor *= LESS**falls * min(1.0, (step - fell_at + 1) / rise)
    return recipe.learning_rate * factor

"""How often a run reports, samples and saves."""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Cadence:
    """How often a run does what does not change its weights.

    Attributes:
        checkpoint: steps between checkpoints, 0 for one at the end alone; None for one every
            half minute.
        samples: steps between grids of samples, 0 for none; None for ten in a run, or one at
            the end of a run of fewer than 20 steps.
        validation: epochs between validations, 0 for none.
        report: steps between lines of the metrics; None for one an epoch, at most 100 steps.
        sample_count: images in a grid; None for 64, or 16 on a CPU for images of more than 256
            dimensions.

    Examples:
        >>> Cadence(samples=None).sample_steps(total=200), Cadence(samples=50).sample_steps(200)
        (20, 50)
    """

    checkpoint: int | None = None
    samples: int | None = None
    validation: int = 1
    report: int | None = None
    sample_count: int | None = None

    def __post_init__(self) -> None:
        least = {"checkpoint": 0, "samples": 0, "validation": 0, "report": 1, "sample_count": 1}
        for name, bound in least.items():
            if (value := getattr(self, name)) is not None and value < bound:
                raise ValueError(f"{name} must be at least {bound}; got {value}")

    def checkpoint_due(self, step: int, seconds: float) -> bool:
        """Whether it is time for a checkpoint, that many seconds after the last one.

        Examples:
            >>> Cadence().checkpoint_due(1, 31.0), Cadence(checkpoint=10).checkpoint_due(1, 31.0)
            (True, False)
        """
        if self.checkpoint is None:
            return seconds >= CHECKPOINT_SECONDS
        return self.checkpoint > 0 and step % self.checkpoint == 0

    def sample_steps(self, total: int) -> int:
        """Steps between grids of samples in a run of that many steps; 0 for none."""
        if self.samples is not None:
            return self.samples
        return total // 10 if total >= 20 else total

    def report_steps(self, steps_per_epoch: int) -> int:
        """Steps between lines of the metrics."""
        return self.report or min(100, steps_per_epoch)

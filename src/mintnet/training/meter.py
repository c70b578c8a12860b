"""Running means, images per second and the time spent."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Meter:
    """Means since the last reset, and a clock that can be paused.

    Examples:
        >>> meter = Meter()
        >>> meter.add({"bpd": 2.0}, images=1)
        >>> meter.add({"bpd": 5.0}, images=2)
        >>> meter.means()
        {'bpd': 4.0}
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        """Time spent in training steps, over all parts of a run."""
        self._sums: dict[str, float] = {}
        self._images = 0
        self._since = self.seconds
        self._started = time.perf_counter()

    def add(self, means: Mapping[str, float], images: int) -> None:
        """Take in the means over some images."""
        self._tick()
        for name, value in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * images
        self._images += images

    def means(self) -> dict[str, float]:
        """The mean of each figure since the last reset."""
        return {name: total / self._images for name, total in self._sums.items()}

    def rate(self) -> float:
        """Images per second since the last reset."""
        return self._images / max(self.seconds - self._since, 1e-9)

    def reset(self) -> None:
        """Begin new means."""
        self._sums, self._images, self._since = {}, 0, self.seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time in this block does not count."""
        self._tick()
        try:
            yield
        finally:
            self._started = time.perf_counter()

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self._started
        self._started = now

"""What a likelihood is used for: methods of density models that `mintnet.analysis` computes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from mintnet.models import storage
from mintnet.models.base import Model

if TYPE_CHECKING:
    from mintnet.analysis.restore import Restoration
    from mintnet.analysis.score import Reference, Score
    from mintnet.models.flow import Flow

FEWEST = 20  # reference images


class AtWork(Model):
    """A density model that scores pictures, with the scores of reference images beside it."""

    scores: dict[str, Tensor] | None = None
    """Of held-out images of the training set, see `analysis.score.Reference`."""

    def save(self, folder: str | Path, **extra: Any) -> None:
        storage.save_scores(folder, None)  # never those of other weights
        super().save(folder, **extra)
        storage.save_scores(folder, self.scores)

    def read(self, folder: Path) -> None:
        super().read(folder)
        self.scores = storage.load_scores(folder)

    def score(
        self, images: Tensor, draws: int = 1, reference: Tensor | Reference | None = None
    ) -> Score:
        """Bits, p-values and maps of nats: how odd uint8 images are, see `analysis.score.score`."""
        from mintnet.analysis.score import score

        return score(cast("Flow", self), images, draws, reference)

    def keep_scores(self, images: Tensor, draws: int = 1) -> None:
        """Measure reference images (n, C, H, W), held out of training, and keep their scores."""
        from mintnet.analysis.score import Reference

        self.scores = Reference.of(cast("Flow", self), images, draws).tensors()

    def restore(self, image: Tensor, mask: Tensor | None = None, **options: Any) -> Restoration:
        """Posterior samples of a picture with something hidden, see `analysis.restore.restore`.

        Options: ``noise``, ``zoom``, ``n``, ``seed``, ``steps``, ``labels`` and ``progress``.
        """
        from mintnet.analysis.restore import restore

        return restore(cast("Flow", self), image, mask, **options)

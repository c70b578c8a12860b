"""Small classifiers with weights and statistics well away from where they start."""

from collections.abc import Callable

import pytest
import torch

from mintnet.bijections import BatchNorm
from mintnet.models import Classifier, ClassifierConfig, Pixels
from registry import away_from_zero


@pytest.fixture
def small_classifier() -> Callable[..., Classifier]:
    """Makes one in float64 and evaluation mode, for 2 × 8 × 8 images."""

    def make(elu: bool = True, channels: int = 2, seed: int = 0, **given: object) -> Classifier:
        torch.manual_seed(seed)
        config = ClassifierConfig(
            **{"width": 4, "pairs": (1, 1), "filters": (2, 1), "elu": elu, **given}
        )
        model = Classifier(config, Pixels((channels, 8, 8), 256, (0.4,), (0.3,)), classes=5)
        away_from_zero(model.double(), seed, gain=1.2)
        with torch.no_grad():
            for norm in (m for m in model.modules() if isinstance(m, BatchNorm)):
                norm.mean.uniform_(-0.5, 0.5)
                norm.variance.uniform_(0.3, 2.0)
                norm.scale.abs_()
        return model.eval()

    return make

"""A small density model, and small classifiers with weights well away from where they start."""

from collections.abc import Callable

import pytest
import torch

from mintnet.bijections import BatchNorm
from mintnet.models import Classifier, ClassifierConfig, Flow, Pixels
from registry import away_from_zero, tiny_flow


@pytest.fixture(scope="session")
def flow() -> Flow:
    return tiny_flow(side=4, seed=5).requires_grad_(False)


@pytest.fixture
def images(flow: Flow) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 17, (8, *flow.shape), dtype=torch.uint8, generator=generator)


@pytest.fixture
def small_classifier() -> Callable[..., Classifier]:
    """Makes one in float64 and evaluation mode, for 2 × 8 × 8 images."""

    def make(elu: bool = True) -> Classifier:
        config = ClassifierConfig(width=4, pairs=(1, 1), filters=(2, 1), elu=elu)
        model = Classifier(config, Pixels((2, 8, 8), 256, (0.4,), (0.3,)), classes=5)
        away_from_zero(model.double(), 0, gain=1.2)
        with torch.no_grad():
            for norm in (m for m in model.modules() if isinstance(m, BatchNorm)):
                norm.mean.uniform_(-0.5, 0.5)
                norm.variance.uniform_(0.3, 2.0)
                norm.scale.abs_()
        return model.eval()

    return make

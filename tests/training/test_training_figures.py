"""Bits per dimension: against closed forms, and the same however they are computed."""

import math

import pytest
import torch

from mintnet.data import ImageData, load
from mintnet.models import Flow, MintNetConfig
from mintnet.models.storage import read_config
from mintnet.training import RunError, evaluate
from mintnet.training.data import images_for


@pytest.mark.parametrize("batch_size", [1, 7, 64, 1000])
def test_evaluation_is_bits_per_dim_whatever_the_batch(batch_size):
    torch.manual_seed(1)
    flow = Flow(MintNetConfig((1, 8, 8), (1, 1), (3, 2)), 0.05, 17)
    data = load("digits", "test")
    data = ImageData("digits", data.images[:50], levels=17)
    bits = torch.stack([flow.bits_per_dim(data.images, 4, k).detach() for k in range(3)])
    bits = bits.double().mean(0)
    result = evaluate(flow, data, draws=3, seed=4, batch_size=batch_size)
    assert result.bits_per_dim == pytest.approx(float(bits.mean()), abs=1e-6)
    assert result.standard_error == pytest.approx(float(bits.std()) / math.sqrt(50), rel=1e-4)
    assert result.nats == pytest.approx(float(bits.mean()) * 64 * math.log(2), rel=1e-5)


def test_a_model_that_does_not_say_what_it_is_for(tmp_path):
    Flow.preset("digits").save(tmp_path)
    with pytest.raises(RunError, match="on which images it was trained"):
        images_for(read_config(tmp_path), "model")
    assert len(images_for(read_config(tmp_path), "model", name="digits")) == 360

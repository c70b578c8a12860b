"""Models in the box do what their results say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mintnet import Classifier, Flow
from mintnet.data import mnist_slice
from mintnet.files import sha256
from mintnet.models.base import Model
from mintnet.models.storage import SHIPPED, WEIGHTS
from registry import FIXTURES


@pytest.mark.parametrize("name", sorted({"mnist", "mnist-classifier", "cifar10", *SHIPPED}))
def test_every_shipped_model_loads_and_stays_small(name: str) -> None:
    assert (SHIPPED[name] / WEIGHTS).stat().st_size < 60e6
    model = Model.load(name)
    stored = load_file(SHIPPED[name] / WEIGHTS)
    assert all(v.dtype == torch.float16 for v in stored.values() if v.is_floating_point())
    if isinstance(model, Flow):  # entries that a mask clears are left out
        network = (value for key, value in stored.items() if key.startswith("net."))
        assert sum(value.numel() for value in network) == model.net.parameter_count()
    assert not model.training
    assert all(bool(p.isfinite().all()) for p in model.parameters())


DRAWS = {"cifar10": 10, "mnist": 10, "mnist-deep": 10}  # of the published figures
DRAWS |= {"mnist-deep-large": 1, "mnist-conditional": 1, "cifar10-deep-small": 1}


@pytest.mark.parametrize(("name", "draws"), DRAWS.items())
def test_the_shipped_weights_are_those_of_the_record(name: str, draws: int) -> None:
    config = json.loads((SHIPPED[name] / "config.json").read_text())
    record = json.loads((FIXTURES.parents[1] / config["trained"]).read_text())
    digest = sha256(SHIPPED[name] / WEIGHTS)
    test = record["test"]
    assert record["weights_sha256"] == test["weights_sha256"] == digest
    assert test["images"] == 10_000 and test["draws"] >= draws
    assert config["test_bits_per_dim"] == round(test["bits_per_dim"], 3)
    parts = record.get("parts", [record])
    assert config["step"] == record["steps"] == sum(part["steps"] for part in parts)
    assert record["training_seconds"] == sum(part["training_seconds"] for part in parts)
    assert record["weights_used"] == Model.load(name).net.parameter_count()


@torch.no_grad()
def test_the_mnist_classifier_reads_digits() -> None:
    images = torch.from_numpy(np.load(FIXTURES / "trained_mnist.npz")["images"])[:4]
    assert Classifier.from_pretrained("mnist")(images).argmax(1).tolist() == [7, 2, 1, 0]


@pytest.mark.slow
@torch.no_grad()
def test_the_mnist_classifier_gives_digits_back() -> None:
    image = torch.from_numpy(np.load(FIXTURES / "trained_mnist.npz")["images"])[:1]
    classifier = Classifier.from_pretrained("mnist").double()
    found = classifier.solve(classifier.features(image))
    assert bool(found.solution.converged.all())
    assert torch.equal(classifier.to_images(found.images), image)
    assert float(found.padding_energy.max()) < 1e-20


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in DRAWS if name.startswith("mnist")])
def test_the_mnist_density_models_know_digits(name: str) -> None:
    flow, images = Flow.from_pretrained(name), mnist_slice().images[:8]
    known = float(flow.bits_per_dim(images).mean())
    assert 0.8 < known < 1.1  # the whole test set has 0.92 to 0.98
    assert float(flow.bits_per_dim(images.flip(-2)).mean()) > known + 0.02  # 16 bits an image
    assert float(flow.bits_per_dim(255 - images).mean()) > known + 0.5


@torch.no_grad()
@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_samples_of_density_models_are_verified(name: str) -> None:
    flow = Flow.from_pretrained(name)
    solution = flow.solve(flow.sample_latents(2, 1.0, 0))
    assert bool(solution.converged.all()) and float(solution.residual.max()) < 1e-3
    assert all(bool(part.converged.all()) for part in solution.parts)
    images = flow.to_images(solution.value)
    if name == "mnist":  # strokes on black, not noise
        assert 0.02 < float((images > 127).float().mean()) < 0.5
    else:
        assert 20 < float(images.float().std()) < 110 and len(solution.parts) == 48


@torch.no_grad()
def test_the_cifar10_density_model_knows_smooth_pictures_from_noise() -> None:
    flow = Flow.from_pretrained("cifar10")
    assert len(flow.net.layers()) == 42 and flow.net.parameter_count() < 21e6
    torch.manual_seed(0)
    coarse = torch.nn.functional.interpolate(torch.rand(2, 3, 4, 4), (32, 32), mode="bicubic")
    smooth, noise = (coarse * 255).clamp(0, 255), torch.randint(0, 256, (2, 3, 32, 32))
    bits = flow.bits_per_dim(torch.cat([smooth, noise]).byte())
    assert bool((bits[:2] < 4).all() and (bits[2:] > 7).all())


@torch.no_grad()
def test_codes_of_a_deep_model_give_the_bytes_back() -> None:
    flow, images = Flow.from_pretrained("mnist-deep"), mnist_slice().images[:16]
    z = flow.encode(images)
    assert flow.dtype == torch.float32 and torch.equal(flow.decode(z), images)

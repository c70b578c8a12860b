"""Invertible classifiers: what they compute, the way back, and what they refuse."""

import copy
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from mintnet import Classifier, FixedPoint, InversionError, ResNet, import_original
from mintnet.bijections import BatchNorm, MintLayer
from mintnet.models import ClassifierConfig, ModelFileError, Pixels, ResNetConfig
from mintnet.models.base import Model
from mintnet.models.resnet import PreActivationBlock
from registry import FIXTURES, small_classifier


def images(count=6, channels=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, channels, 8, 8), dtype=torch.uint8, generator=generator)


def test_the_papers_shape():
    model = Classifier.preset("cifar10")
    assert [layer.event_shape for layer in model.layers()] == (
        [(16, 32, 32)] * 12 + [(64, 16, 16)] * 12 + [(256, 8, 8)] * 14
    )
    assert [layer.ordering.upper for layer in model.layers()] == [False, True] * 19
    assert {layer.filters for layer in model.layers()} == {1}
    assert {layer.activation_name for layer in model.layers()} == {"leaky_relu"}
    before = [one for one, part in pairwise(model.chain.leaves()) if isinstance(part, MintLayer)]
    assert all(isinstance(part, BatchNorm) for part in before)
    assert Classifier.preset("mnist").parameter_count() == 13_600_106
    assert Classifier.preset("cifar10-classifier").feature_shape == (256, 8, 8)


def test_the_start_is_that_of_a_convolution():
    """Kaiming uniform with a = √5: uniform in ± 1 / √fan-in."""
    layer = Classifier.preset("mnist").requires_grad_(False).layers()[-1]
    bound = 1 / (256 * 9) ** 0.5
    for weight in (layer.weight1, layer.weight2, layer.weight3):
        assert float(weight.abs().max()) == pytest.approx(bound, rel=1e-3)
        assert float(weight.std()) == pytest.approx(bound / 3**0.5, rel=1e-2)
    assert float((layer.t - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("elu", [True, False])
def test_log_probabilities_by_hand(elu):
    model, x = small_classifier(elu), images()
    prepared = (x.double() / 255 - 0.4) / 0.3
    padded = torch.cat([prepared, torch.zeros(len(x), 2, 8, 8, dtype=torch.float64)], 1)
    features, _ = model.chain(padded)
    pooled = (F.elu(features) if elu else features).mean((2, 3))
    expected = F.log_softmax(pooled @ model.linear.weight.T + model.linear.bias, 1)
    torch.testing.assert_close(model(x), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(model(prepared), expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(model.features(x), features, atol=1e-12, rtol=0)


def test_the_fast_path_trains_like_the_plain_one():
    """Values, gradients and running statistics; bfloat16 changes little."""
    fast = small_classifier().float().train()
    plain, start = copy.deepcopy(fast), copy.deepcopy(fast).eval()
    x = torch.randn(8, 2, 8, 8)
    one = fast.values(fast.padded(x), torch.float32)
    two, _ = plain.chain.transform(plain.padded(x))
    for values in (one, two):
        values.square().mean().backward()
    pairs = [(one, two), *zip(fast.buffers(), plain.buffers(), strict=True)]
    weights = zip(fast.chain.parameters(), plain.chain.parameters(), strict=True)
    for a, b in [*pairs, *((a.grad, b.grad) for a, b in weights)]:
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)
    moved = zip(fast.buffers(), start.buffers(), strict=True)
    assert sum(float((a.float() - b.float()).abs().sum()) for a, b in moved) > 0.1
    narrow, wide = start.logits(x, torch.bfloat16).detach(), start.logits(x).detach()
    assert narrow.dtype == torch.float32
    assert 0 < float((narrow - wide).norm() / wide.norm()) < 0.1


@pytest.mark.parametrize(
    ("channels", "dtype"),
    [(1, torch.float64), (2, torch.float64), (4, torch.float64), (2, torch.float32)],
)
def test_there_and_back(channels, dtype):
    """Constant images too."""
    model, x = small_classifier(channels=channels).to(dtype), images(channels=channels)
    x[:3] = torch.tensor([0, 255, 128], dtype=torch.uint8).reshape(3, 1, 1, 1)
    found = model.solve(model.features(x))
    assert bool(found.solution.converged.all()) and found.images.dtype == dtype
    back = model.invert(model.features(x))
    assert bool((model.to_images(back) == x).all()) and bool(model(x).isfinite().all())
    if dtype == torch.float64:
        assert float((model.pixels.denormalized(found.images) - x).abs().max()) < 1e-6
        assert float(found.padding_energy.max()) < 1e-18


def test_features_of_no_image_land_in_the_padding():
    model = small_classifier().requires_grad_(False)
    features = model.features(images()) + 0.3 * torch.randn(6, *model.feature_shape).double()
    found = model.solve(features)
    assert bool(found.solution.converged.all())
    assert float(found.padding_energy.min()) > 1e-6
    whole, _ = model.chain(found.solution.value)
    torch.testing.assert_close(whole, features, atol=1e-9, rtol=1e-9)
    projected = model.features(found.images)
    assert float((projected - features).abs().max()) > 1e-3  # leaving it out is a projection


def test_training_mode(raises_with):
    model = small_classifier()
    features = model.features(images())
    model.train()
    for call in (model.invert, model.solve):
        for kind in (RuntimeError, ValueError):
            with raises_with(kind, "training mode", "statistics", ".eval()"):
                call(features)
    with raises_with(ValueError, "at least two images", ".eval()"):
        model(images(1))
    with raises_with(ValueError, "constant", "divide by 0"):
        model(torch.full((4, 2, 8, 8), 7, dtype=torch.uint8))
    assert model(images(2)).shape == (2, 5)


def test_what_is_refused(raises_with):
    model, nan = small_classifier(), torch.full((2, 2, 8, 8), float("nan"), dtype=torch.float64)
    digits = Classifier.preset("digits").eval()
    for call, *words in (
        (lambda: model(images(channels=3)), "(batch, 2, 8, 8)", "2 channels", "3"),
        (lambda: model(images()[:, 0, :4]), "(6, 4, 8)"),
        (lambda: model(torch.zeros(2, 2, 8, 8)), "float32", "float64"),
        (lambda: model(nan), "finite"),
        (lambda: model(images(0)), "at least one image"),
        (lambda: model.invert(torch.zeros(1, 3, 4, 4).double()), "16, 4, 4"),
        (lambda: digits(torch.full((1, 1, 8, 8), 200).byte()), "17 grey levels", "200"),
        (lambda: small_classifier(channels=5), "5 channels", "padded to 4"),
        (lambda: Classifier.preset("svhn"), "'svhn'", "digits, mnist, cifar10"),
        (lambda: ResNetConfig((1,), (4, 8)), "blocks and widths", "1 and 2"),
    ):
        with raises_with(ValueError, *words):
            call()
    with raises_with(TypeError, "tensor", "ndarray", "torch.from_numpy"):
        model(images().numpy())
    with pytest.raises(InversionError):
        model.invert(model.features(images()), FixedPoint(max_steps=1))


@pytest.mark.parametrize("half", [False, True])
def test_saved_and_loaded(tmp_path, half):
    model, x = small_classifier().float(), images()
    model.save(tmp_path / "last", preset="own")
    packed = load_file(tmp_path / "last" / "model.safetensors")
    masked = sum(int((~m).sum()) for la in model.layers() for m in (la.mask1, la.mask2, la.mask3))
    stored = sum(t.numel() for t in packed.values())
    assert stored == sum(t.numel() for t in model.state_dict().values()) - masked
    if half:
        rounded = {name: tensor.half() for name, tensor in packed.items()}
        save_file(rounded, tmp_path / "last" / "model.safetensors")
    loaded = Classifier.load(tmp_path)
    assert not loaded.training and isinstance(Model.load(tmp_path), Classifier)
    found, expected = loaded(x), model(x)
    assert found.dtype == torch.float32
    assert float((found - expected).abs().max()) < (0.2 if half else 1e-6)


SMALL = {
    "classifier": lambda: Classifier(ClassifierConfig(4, (1,), (1,)), Pixels((1, 8, 8))),
    "resnet": lambda: ResNet(ResNetConfig((1,), (4,)), Pixels((1, 8, 8))),
}


@pytest.mark.parametrize("kind", SMALL)
def test_damaged_variances_and_other_models_are_refused(kind, tmp_path, raises_with):
    model = SMALL[kind]()
    model.save(tmp_path)
    Model.load(tmp_path)
    other = {"classifier": ResNet, "resnet": Classifier}[kind]
    with raises_with(ModelFileError, "resnet", "classifier"):
        other.load(tmp_path)
    with raises_with(ModelFileError, "no classifier 'cifar10'"):
        Classifier.from_pretrained("cifar10")
    next(b for name, b in model.named_buffers() if "var" in name).fill_(-0.5)
    model.save(tmp_path)
    with raises_with(ModelFileError, "var", "negative"):
        Model.load(tmp_path)


@pytest.mark.parametrize("name", ["mean", "deviation"])
@pytest.mark.parametrize("value", ["a", None, float("nan"), float("inf"), True])
def test_pixels_that_are_not_described_in_numbers(name, value, tmp_path, raises_with):
    with raises_with(ValueError, f"{name}[0]: expected a finite number"):
        Pixels((1, 8, 8), **{name: (value,)})
    SMALL["classifier"]().save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pixels"][name] = [value]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with raises_with(ModelFileError, "config.json", name):
        Classifier.load(tmp_path)


def test_resnet_is_the_papers():
    net = ResNet.preset("cifar10")
    widths = [block.convolutions[-1].out_channels for block in net.blocks]
    assert widths == [16] * 12 + [64] * 12 + [256] * 14
    for block in net.blocks:
        assert [conv.kernel_size for conv in block.convolutions] == [(3, 3)] * 3
    for channels in (1, 3, 7):
        small = ResNet(ResNetConfig((1, 2), (4, 8)), Pixels((channels, 9, 8))).eval()
        probabilities = small(torch.zeros(2, channels, 9, 8, dtype=torch.uint8)).exp()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(2))
    block = PreActivationBlock(3, 3).double().eval()
    x = u = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    for norm, conv in zip(block.norms, block.convolutions, strict=True):
        u = conv(torch.relu(norm(u)))
    torch.testing.assert_close(block(x), x + u)


def test_the_authors_classifier():
    model = import_original(FIXTURES / "original_classifier.pth").double()
    with np.load(FIXTURES / "original_classifier.npz") as arrays:
        x = torch.from_numpy(arrays["x"]).double()
        expected = torch.from_numpy(arrays["log_probs"])
    assert isinstance(model, Classifier) and model.config.elu
    assert float((model(x) - expected).abs().max()) < 1e-9
    assert float((model.invert(model.features(x)) - x).abs().max()) < 1e-9


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda s: s.pop("module.fc.bias"), "linear layer"),
        (lambda s: s.pop("module.layers.0.2.running_var"), "layers.0.2.running_var"),
        (lambda s: s.update({"module.fc.weight": torch.zeros(10, 63)}), "fc.weight"),
        (lambda s: s["module.layers.0.0.running_var"].fill_(-1.0), "negative"),
        (lambda s: s["module.layers.2.1.weight2"].fill_(float("nan")), "finite"),
        (lambda s: s.update({"module.layers.0.0.bias": torch.zeros(15)}), "shape"),
    ],
)
def test_damaged_classifier_checkpoints(tmp_path, raises_with, damage, words):
    checkpoint = torch.load(FIXTURES / "original_classifier.pth", weights_only=True)
    damage(checkpoint[0])
    torch.save(checkpoint, tmp_path / "c.pth")
    with raises_with(ModelFileError, "c.pth", words):
        import_original(tmp_path / "c.pth")

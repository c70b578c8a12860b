"""Restoration: posteriors that are known in closed form, and pictures that are kept."""

import math

import pytest
import torch

from mintnet import Flow
from mintnet.analysis.restore import noisy, restore
from mintnet.bijections import TriangularBijection
from mintnet.bijections.mixture_network import SLOW
from mintnet.calculus import MaskedConv2d
from mintnet.models import MintNetConfig
from mintnet.models.deep import DeepConfig, DeepNet
from registry import tiny_flow

SIDE = 4


class Affine(TriangularBijection):
    """y = 14 x + W ⊛ x: with a normal base, pictures are Gaussian."""

    def __init__(self) -> None:
        super().__init__()
        self.event_shape, self.conv = (1, SIDE, SIDE), MaskedConv2d(1)

    def function(self, x):
        return 14.0 * x + self.conv(x)


def affine_flow() -> Flow:
    """By Hamiltonian Monte Carlo."""
    flow, net = Flow(MintNetConfig((1, 4, 4), (1,), (1,)), None, base="normal"), Affine()
    for parameter in net.parameters():
        parameter.copy_(2 * torch.randn_like(parameter))
    flow.net = net
    return flow


def mixture_flow() -> Flow:
    """By particles: one component of scale 1/14 around a linear prediction, whatever is seen."""
    flow = Flow(DeepConfig((1, 4, 4), (1,), (1,), (1,), (1,)), None, base="normal")
    network = flow.net.layers()[0].network
    head, linear = network.convolutions[-1], network.linear
    head.weight.zero_()
    head.bias.copy_(torch.tensor([0.0, 0.3, -math.log(14), 0.0]))
    linear.weight[:, :1] = linear.mask[:, :1] * torch.randn(1, 1, 3, 3) * 0.2 / SLOW  # x alone
    return flow


@pytest.fixture(scope="module", params=[affine_flow, mixture_flow])
def gaussian(request) -> tuple[Flow, torch.Tensor, torch.Tensor]:
    """A flow whose pictures are Gaussian, with their mean and covariance (pixels in [0, 1])."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        flow = request.param()
    flow, net = flow.double(), flow.net
    zero = torch.full((1, 1, SIDE, SIDE), 0.5, dtype=torch.float64)

    def code(x: torch.Tensor) -> torch.Tensor:
        return net.value(flow.pixels.value(x)).flatten()

    jacobian = torch.autograd.functional.jacobian(code, zero).reshape(16, 16)
    covariance = torch.linalg.inv(jacobian.T @ jacobian)
    mean = zero.flatten() - torch.linalg.solve(jacobian, code(zero))
    return flow.requires_grad_(False), mean.detach(), covariance


def steps_of(flow: Flow) -> int:
    """Gradients of a chain, or particles of a sample."""
    return 16 if isinstance(flow.net, DeepNet) else 150


def check(found, mean, covariance, count) -> None:
    """Mean and covariance of samples in grey levels, within some standard errors."""
    x = (found.samples.flatten(1).double() + 0.5) / 256
    deviation = covariance.diagonal().sqrt()
    assert float(((x.mean(0) - mean) / deviation).abs().max()) < 4.5 / count**0.5
    whitened = (x.T.cov() - covariance) / (deviation[:, None] * deviation)
    assert float(whitened.abs().max()) < 7 / count**0.5
    pooled = (found.mean.flatten() + 0.5) / 256
    assert float(((pooled - mean) / deviation).abs().max()) < 4.5 / count**0.5
    assert 0.3 < found.acceptance <= 1.0
    assert found.effective > count


HIDDEN = {"rows": (slice(1, 3),), "lower half": (slice(2, 4),), "hole": (slice(1, 3), slice(1, 3))}


@pytest.mark.parametrize("where", HIDDEN)
def test_gaussian_pictures_with_pixels_hidden(gaussian, where: str) -> None:
    flow, mean, covariance = gaussian
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[HIDDEN[where]] = True
    image = flow.to_images(flow.pixels.value(mean.reshape(1, 1, SIDE, SIDE)))[0].clone()
    image[:, 0] += 12
    count, u, k = 600, mask.flatten(), ~mask.flatten()
    found = restore(flow, image, mask, n=count, steps=steps_of(flow))
    assert bool((found.samples[:, :, ~mask] == image[:, ~mask]).all())
    assert bool((found.spread[:, ~mask] == 0).all())
    gain = covariance[u][:, k] @ torch.linalg.inv(covariance[k][:, k])
    expected = mean[u] + gain @ ((image.flatten()[k] + 0.5) / 256 - mean[k])
    left = covariance[u][:, u] - gain @ covariance[k][:, u]
    left = left + gain @ gain.T / 256**2 / 12  # what the noise of known pixels adds
    samples = found.samples[:, :, mask]
    part = type(found)(samples, found.mean[:, mask], samples, found.acceptance, found.effective)
    check(part, expected, left, count)


def test_gaussian_pictures_seen_through_noise(gaussian) -> None:
    flow, mean, covariance = gaussian
    image = flow.to_images(flow.pixels.value(mean.reshape(1, 1, SIDE, SIDE)))[0].clone()
    image[:, 2] -= 20
    count, sigma = 600, 25 / 255
    found = restore(flow, image, noise=sigma, n=count, steps=steps_of(flow))
    left = torch.linalg.inv(torch.linalg.inv(covariance) + torch.eye(16).double() / sigma**2)
    check(found, mean + left @ ((image.flatten() + 0.5) / 256 - mean) / sigma**2, left, count)


def test_blocks_come_back(gaussian) -> None:
    flow, mean, _ = gaussian
    picture = flow.to_images(flow.pixels.value(mean.reshape(1, 1, SIDE, SIDE)))[0]
    small = torch.nn.functional.avg_pool2d(picture.double(), 2).round().to(torch.uint8)
    found = restore(flow, small, zoom=2, n=4, steps=400)
    assert found.samples.shape == (4, 1, SIDE, SIDE)
    means = torch.nn.functional.avg_pool2d(found.samples.double(), 2)
    assert float((means - small).abs().max()) < 3


FLOWS = {
    "mint": lambda: tiny_flow(side=8, seed=3),
    "deep": lambda: Flow(DeepConfig((1, 8, 8), (2,), (4,), (1,), (3,)), None, levels=17),
    "conditional": lambda: Flow(DeepConfig((1, 8, 8), (2,), (4,), (1,), (3,), 2), None, levels=17),
    "one layer": lambda: Flow(DeepConfig((1, 8, 8), (1,), (4,), (1,), (3,), 2), None, levels=17),
}


@pytest.mark.parametrize("name", FLOWS)
def test_the_same_seed_gives_the_same_pictures(name: str) -> None:
    flow, told = FLOWS[name](), []
    image, mask = torch.full((1, 8, 8), 5, dtype=torch.uint8), torch.ones(8, 8, dtype=torch.bool)
    mask[:3] = False

    def run(seed: int, **options):
        return flow.restore(image, mask, n=2, seed=seed, steps=40, **options)

    first = run(1, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == ((22, 22) if name == "one layer" else (8, 8))  # levels, or proposals
    assert torch.equal(first.samples, run(1).samples)
    assert not torch.equal(first.samples, run(2).samples)
    assert int(first.samples.max()) < 17
    assert bool((first.samples[:, :, :3] == 5).all())


def test_everything_may_be_hidden() -> None:
    flow, everything = tiny_flow(side=4, seed=0), torch.ones(4, 4, dtype=torch.bool)
    found = flow.restore(torch.zeros(1, 4, 4, dtype=torch.uint8), everything, n=2, steps=20)
    assert float(found.spread.min()) > 0


def test_clipped_noise_by_hand() -> None:
    image, x = torch.tensor([[[0, 100, 255]]], dtype=torch.uint8), torch.full((1, 1, 1, 3), 0.5)
    far = torch.tensor([[[[0.0, 100.5 / 256, 1.0]]]])
    assert noisy(image, 0.1, 256)(far).sum() > noisy(image, 0.1, 256)(x).sum() + 20


def test_what_is_refused(raises_with) -> None:
    flow = tiny_flow(side=8, seed=3)
    image, mask = torch.zeros(1, 8, 8, dtype=torch.uint8), torch.ones(8, 8, dtype=torch.bool)
    for given, options, *words in (
        (image, {"mask": mask[1:]}, "bool mask of shape (8, 8)", "(7, 8)"),
        (image, {"mask": mask.byte()}, "bool mask", "torch.uint8"),
        (image, {"mask": ~mask}, "hides nothing"),
        (image.expand(3, 8, 8), {"mask": mask}, "picture of shape (1, 8, 8)", "(3, 8, 8)"),
        (image, {"zoom": 2}, "picture of shape (1, 4, 4)"),
        (image, {"zoom": 3}, "zoom is 2"),
        (image + 200, {"mask": mask}, "17 grey levels", "200"),
        (image, {}, "one of mask, noise and zoom"),
        (image, {"noise": -1.0}, "standard deviation above 0"),
        (image, {"mask": mask, "n": 0}, "n is at least 1"),
    ):
        with raises_with(ValueError, *words):
            flow.restore(given, **options)

"""Recorded steps and the wavefront kernel on a GPU; skipped where there is none."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor

from mintnet import Auto, Chain, FixedPoint, InTurn, MintLayer, Squeeze, Wavefront
from mintnet.precision import true_float32
from mintnet.solvers.replay import Recorder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _layer(seed: int = 0, upper: bool = False) -> MintLayer:
    torch.manual_seed(seed)
    layer = MintLayer(3, 7, (8, 6), upper)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return layer.cuda().eval()


def _targets(layer: MintLayer, count: int = 9) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *layer.event_shape, device="cuda")
    return x, layer(x)[0].detach()


@torch.no_grad()
@pytest.mark.parametrize("step", [1.0, 0.7])
def test_recorded_steps_are_plain_steps(step: float) -> None:
    layer = _layer()
    _, z = _targets(layer)
    plain = layer.solve(z, FixedPoint(step=step, capture=False))
    for _ in range(3):
        recorded = layer.solve(z, FixedPoint(step=step))
        assert torch.equal(plain.status, recorded.status)
        assert (plain.value - recorded.value).abs().max() < 1e-4
        assert bool(recorded.converged.all())
        assert float(recorded.residual.max()) < 5e-6


@torch.no_grad()
@pytest.mark.parametrize("upper", [False, True])
def test_recorded_blocks_are_plain_blocks(upper: bool) -> None:
    torch.manual_seed(2)
    layer = MintLayer(3, 40, (32, 32), upper)  # slow enough for samples to leave the batch
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.06)
    layer.cuda().eval()
    sizes = torch.logspace(-1, 1, 64, device="cuda")[:, None, None, None]
    z = layer(sizes * torch.randn(64, 3, 32, 32, device="cuda"))[0]
    plain = layer.solve(z, InTurn(steps=FixedPoint(max_steps=200, watch=True, capture=False)))
    for _ in range(3):
        recorded = layer.solve(z, InTurn())
        assert bool(recorded.converged.all()) and bool(plain.converged.all())
        assert float(recorded.residual.max()) < 5e-6
        assert (plain.value - recorded.value).abs().max() < 1e-3 * plain.value.abs().max()
    layer.weight2.mul_(0.5)
    changed = layer.solve(z, InTurn())
    assert bool(changed.converged.all())
    with true_float32():  # as solvers evaluate; the TF32 of torch's default is good for 1e-4
        assert (layer(changed.value)[0] - z).abs().max() < 1e-5 * z.abs().max()


@torch.no_grad()
def test_recorded_steps_see_weights_that_change() -> None:
    layer = _layer()
    _, z = _targets(layer)
    first = layer.solve(z, FixedPoint()).value
    layer.weight1.mul_(0.5)
    layer.weight2.data.mul_(0.5)
    second = layer.solve(z, FixedPoint())
    assert bool(second.converged.all())
    assert (layer(second.value)[0] - z).abs().max() < 1e-4
    assert (second.value - first).abs().max() > 1e-3
    layer.weight3 = torch.nn.Parameter(layer.weight3 * 0.5)
    third = layer.solve(z, FixedPoint())
    assert (layer(third.value)[0] - z).abs().max() < 1e-4
    layer.cpu().double().cuda()
    fourth = layer.solve(z.double(), FixedPoint())
    assert (layer(fourth.value)[0] - z.double()).abs().max() < 1e-9


@torch.no_grad()
def test_solutions_are_not_overwritten_by_later_ones() -> None:
    layer = _layer()
    (x, z), (_, other) = _targets(layer), _targets(layer)
    first = layer.solve(z, FixedPoint()).value
    layer.solve(other, FixedPoint())
    assert (first - x).abs().max() < 1e-3


@torch.no_grad()
def test_copies_solve_on_their_own() -> None:
    layer = _layer()
    x, z = _targets(layer)
    layer.solve(z, Auto())
    twin = copy.deepcopy(layer)
    assert (twin.inverse(z) - x).abs().max() < 1e-3


@torch.no_grad()
def test_threads_do_not_disturb_each_other() -> None:
    layers = [_layer(seed) for seed in range(4)]
    pairs = [_targets(layer) for layer in layers]
    errors: list[float] = []

    def work(number: int) -> None:
        (x, z), layer = pairs[number], layers[number]
        for _ in range(5):
            errors.append(float((layer.inverse(z) - x).abs().max()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 20 and max(errors) < 1e-3


@torch.no_grad()
def test_random_numbers_survive_a_recording_that_fails() -> None:
    x = torch.ones(3, device="cuda")
    recorder = Recorder(x.device)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: x.sum().item())  # waits for the device, which no graph can
    torch.manual_seed(4)
    first = torch.randn(5, device="cuda")
    torch.manual_seed(4)
    assert torch.equal(first, torch.randn(5, device="cuda"))
    layer = _layer()
    x, z = _targets(layer)
    for _ in range(3):
        assert (layer.inverse(z) - x).abs().max() < 1e-3


@torch.no_grad()
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("shape", [(1, 28, 28, 45), (4, 14, 14, 11), (16, 7, 7, 2), (3, 40, 40, 5)])
def test_kernel_is_the_plain_walk(shape: tuple[int, ...], upper: bool) -> None:
    channels, height, width, filters = shape
    torch.manual_seed(1)
    layer = MintLayer(channels, filters, (height, width), upper)
    for weight in (layer.weight1, layer.weight2, layer.weight3):
        torch.nn.init.normal_(weight, std=0.1)
    layer.cuda()
    x = torch.randn(5, channels, height, width, device="cuda")
    z = layer(x)[0]
    found = layer.solve(z, Wavefront())
    assert bool(found.converged.all())
    plain = layer.double().solve(z.double(), Wavefront())  # the kernel is for float32 alone
    assert (found.value - plain.value).abs().max() < 1e-3 * plain.value.abs().max()


@torch.no_grad()
def test_chains_and_odd_batches() -> None:
    chain = Chain(_layer(0), Squeeze(2, (3, 8, 6)), _squeezed()).cuda().eval()
    for count in (1, 2, 5, 64):
        x = torch.randn(count, 3, 8, 6, device="cuda")
        z = chain(x)[0]
        for _ in range(3):
            assert (chain.inverse(z) - x).abs().max() < 1e-3
    z[0, 0] = float("nan")
    solution = chain.solve(z)
    assert solution.converged.tolist() == [False] + [True] * 63


def _squeezed() -> MintLayer:
    torch.manual_seed(3)
    layer = MintLayer(12, 2, (4, 3))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return layer

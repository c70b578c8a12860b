"""Mint layers on the chip against their plain twin."""

from __future__ import annotations

import pytest
import torch
from kernel_layers import errors, everything, layer_of

from mintnet import MintNet, kernels
from mintnet.kernels.chip import Launch, Tuning, can_fuse, chip_layer
from mintnet.kernels.mint import Prepared, mint_layer, prepared_layers
from mintnet.models import MintNetConfig, fast
from mintnet.precision import true_float32

CASES = [
    # channels, filters, height, width, upper, kernel size
    (1, 5, 4, 3, False, 3),
    (1, 5, 3, 4, True, 3),
    (2, 3, 3, 3, False, 3),
    (3, 7, 2, 3, True, 3),  # 21 hidden channels are padded to 32, and 27 seen ones to 32
    (1, 3, 4, 5, True, 5),
    (2, 2, 2, 3, False, 1),
]


@pytest.mark.parametrize(("channels", "filters", "height", "width", "upper", "size"), CASES)
def test_values_log_dets_and_gradients(
    device: torch.device,
    channels: int,
    filters: int,
    height: int,
    width: int,
    upper: bool,
    size: int,
) -> None:
    layer = layer_of(channels, filters, height, width, upper, size).to(device)
    x = torch.randn(2, channels, height, width, device=device)
    # Blocks smaller than the images, so that several programs have several each.
    tuning = Tuning(*5 * [Launch(16, 4, 1)], programs=2)
    assert can_fuse(x, prepared_layers([layer], torch.float32)[0], size, upper)
    with true_float32():
        plain = everything(mint_layer, layer, x, torch.float32)
        chip = everything(chip_layer, layer, x, torch.float32, tuning=tuning, compile=False)
    for name, error in errors(plain, chip).items():
        assert error < 1e-5, name


def test_half_precision_is_as_good_as_that_of_the_twin(device: torch.device) -> None:
    """float16 stands for bf16, which the interpreter cannot multiply."""
    layer = layer_of(2, 4, 3, 4, False, 3).to(device)
    x = torch.randn(3, 2, 3, 4, device=device)
    exact = everything(mint_layer, layer, x, torch.float32)
    plain = errors(exact, everything(mint_layer, layer, x, torch.float16))
    chip = errors(exact, everything(chip_layer, layer, x, torch.float16, compile=False))
    for name, error in chip.items():
        assert error < max(1.5 * plain[name], 1e-3), name
    assert max(chip.values()) > 1e-5  # it is half precision


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(2, 1, 4, 4)
    assert can_fuse(
        x, prepared_layers([layer_of(1, 5, 4, 4, False, 3)], torch.float32)[0], 3, False
    )
    wide = prepared_layers([layer_of(1, 40, 4, 4, False, 3)], torch.float32)[0]
    assert not can_fuse(x, wide, 3, False)  # 48 is no power of 2
    many = prepared_layers([layer_of(17, 1, 4, 4, False, 3)], torch.float32)[0]
    assert not can_fuse(torch.zeros(2, 17, 4, 4), many, 3, False)
    double = layer_of(1, 5, 4, 4, False, 3).double()
    assert not can_fuse(x.double(), prepared_layers([double], torch.float64)[0], 3, False)


def test_a_network_takes_the_chip_where_it_can(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, with values and gradients of the plain way."""
    torch.manual_seed(0)
    net = MintNet(MintNetConfig((1, 4, 4), pairs=(1, 1), filters=(5, 12))).to(device)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    taken = []

    def layer(*arguments: object) -> tuple[torch.Tensor, torch.Tensor]:
        taken.append(arguments[0].shape[1:])  # type: ignore[attr-defined]
        return chip_layer(*arguments, compile=False)  # type: ignore[arg-type]

    def chosen(x: torch.Tensor, weights: Prepared, filters: int, size: int, upper: bool) -> bool:
        return can_fuse(x, weights, size, upper) and x.shape[1] < 4

    monkeypatch.setattr(fast, "_runs_on_chip", chosen)
    monkeypatch.setattr(fast, "chip_layer", layer)
    monkeypatch.setattr(kernels, "compiled", lambda function: function)
    x = torch.randn(2, 1, 4, 4, device=device)

    def gradients(z: torch.Tensor, log_det: torch.Tensor) -> torch.Tensor:
        loss = z.square().sum() / 2 - log_det.sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])

    plain = fast.fast_transform(net, x, torch.float32, on_chip=False)
    assert not taken
    found = fast.fast_transform(net, x, torch.float32)
    assert taken == 2 * [(1, 4, 4)]
    pairs = [*zip(plain, found, strict=True), (gradients(*plain), gradients(*found))]
    for expected, value in pairs:
        assert (value - expected).norm() < 1e-5 * expected.norm()

"""Muon: orthogonal steps, masks, what it moves, and that it can be gone on with."""

from __future__ import annotations

import copy

import torch

from mintnet import Flow, MintLayer
from mintnet.training.optimizers import RMS, Muon, kernels_of, orthogonalized


def _optimizer(model: torch.nn.Module, **options: float) -> Muon:
    return Muon(*kernels_of(model), **{"lr": 1e-2, "eps": 1e-5, **options})


def _loss(layer: MintLayer) -> torch.Tensor:
    y, log_det = layer(torch.linspace(-2, 2, 5 * 2 * 16).reshape(5, 2, 4, 4))
    return (y.square().flatten(1).sum(1) / 2 - log_det).mean()


def _step(layer: MintLayer, optimizer: Muon) -> float:
    optimizer.zero_grad()
    loss = _loss(layer)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def test_steps_are_near_orthogonal_whatever_the_shape_and_the_scale() -> None:
    torch.manual_seed(0)
    for shape in ((3, 20, 50), (1, 50, 20), (2, 7, 7)):
        values = torch.linalg.svdvals(orthogonalized(1e-6 * torch.randn(shape)))
        # of a square matrix the least singular value may be far below the others
        assert float(values.max()) < 1.3 and float(values[:, :-2].min()) > 0.6
    assert torch.equal(orthogonalized(torch.zeros(1, 3, 4)), torch.zeros(1, 3, 4))


def test_a_kernel_moves_by_the_learning_rate_and_where_its_mask_lets_it() -> None:
    layer = MintLayer(2, 3, (4, 4))
    before = [weight.detach().clone() for weight in kernels_of(layer)[0]]
    optimizer = _optimizer(layer, lr=0.01)
    _step(layer, optimizer)
    for (weight, mask), old in zip(optimizer.masks.items(), before, strict=True):
        assert mask is not None
        moved = (weight.detach() - old).abs()
        assert float(moved[mask == 0].max()) == 0
        assert abs(float(moved.square().sum() / mask.sum()) ** 0.5 / (0.01 * RMS) - 1) < 1e-3


def test_layers_of_one_shape_move_as_they_would_alone() -> None:
    layers = [MintLayer(2, 3, (4, 4), upper) for upper in (False, True)]
    alone = [MintLayer(2, 3, (4, 4), upper) for upper in (False, True)]
    for one, other in zip(layers, alone, strict=True):
        other.load_state_dict(one.state_dict())
        _step(other, _optimizer(other))
    both = _optimizer(torch.nn.ModuleList(layers))
    for layer in layers:
        _loss(layer).backward()
    both.step()
    for one, other in zip(layers, alone, strict=True):
        for name, value in one.state_dict().items():
            assert torch.allclose(value, other.state_dict()[name], atol=1e-6), name


def test_a_saved_state_goes_on_as_if_nothing_had_been() -> None:
    torch.manual_seed(1)
    one, two = MintLayer(2, 3, (4, 4)), MintLayer(2, 3, (4, 4))
    first = _optimizer(one)
    losses = [_step(one, first) for _ in range(4)]
    assert losses[3] < losses[0]
    two.load_state_dict(one.state_dict())
    second = _optimizer(two)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert [_step(one, first) for _ in range(3)] == [_step(two, second) for _ in range(3)]


def test_every_parameter_of_a_model_is_moved_once() -> None:
    flow = Flow.preset("digits")
    kernels, others = kernels_of(flow)
    moved = [id(parameter) for parameter in (*kernels, *others)]
    assert sorted(moved) == sorted(id(parameter) for parameter in flow.parameters())
    assert all(mask is not None and mask.shape == k.shape for k, mask in kernels.items())

"""The layers of other flows against their formulas, their gradients, and users' mistakes."""

import builtins

import pytest
import torch
from torch import nn

import mintnet
from mintnet.calculus import HalfConditioner
from mintnet.flows.i_resnet import SpectralLinear
from registry import away_from_zero


def _double(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_a_channel_coupling_is_its_formula() -> None:
    network = nn.Linear(6, 12).double()
    layer = mintnet.RealNVPCoupling((6,), "channel", network=network, scale="exp").double()
    x = _double(5, 6)
    y, log_det = layer(x)
    s, t = network(torch.cat((x[:, :3], torch.zeros_like(x[:, 3:])), 1)).chunk(2, 1)
    torch.testing.assert_close(y[:, :3], x[:, :3])
    torch.testing.assert_close(y[:, 3:], x[:, 3:] * s[:, 3:].exp() + t[:, 3:])
    torch.testing.assert_close(log_det, s[:, 3:].sum(1))


def test_a_checkerboard_coupling_leaves_every_other_pixel() -> None:
    layer = away_from_zero(mintnet.NICECoupling((1, 3, 3), "checkerboard"), 1)
    x = torch.randn(2, 1, 3, 3)
    assert (layer(x)[0] != x).int()[0, 0].tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    other = away_from_zero(mintnet.NICECoupling((1, 3, 3), "checkerboard", upper=True), 1)
    assert (other(x)[0] != x).int()[0, 0].tolist() == [[1, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_fresh_layers_are_the_identity() -> None:
    x, shape = torch.randn(2, 2, 4, 4), (2, 4, 4)
    fresh = (
        mintnet.NICECoupling(shape),
        mintnet.RealNVPCoupling(shape, scale="exp"),
        mintnet.MAF(shape, scale="softplus"),
    )
    for layer in fresh:
        torch.testing.assert_close(layer(x)[0], x)


def test_the_1x1_convolution_is_one_dense_matrix() -> None:
    mix = mintnet.invertible_1x1(5, (2, 3)).double()
    assert float(mix(_double(4, 5, 2, 3))[1].detach().abs().max()) < 1e-5  # a rotation at first
    away_from_zero(mix, 2)
    with torch.no_grad():
        columns = mix(torch.eye(5, dtype=torch.float64)[:, :, None, None].expand(5, 5, 2, 3))[0]
        matrix = columns[:, :, 0, 0].T
        x = _double(4, 5, 2, 3)
        torch.testing.assert_close(mix(x)[0], torch.einsum("ij,bjhw->bihw", matrix, x))
        torch.testing.assert_close(mix(x)[1], 6 * torch.linalg.slogdet(matrix)[1].expand(4))
        assert bool(matrix.triu(1).any()) and bool(matrix.tril(-1).any())


def test_emerging_masks_by_hand() -> None:
    seen = (mintnet.EmergingFactor(2, (3, 3)).linear_map().weight.detach() != 0).int().tolist()
    own, earlier = ([[1, 1, 1], [1, k, 0], [0, 0, 0]] for k in (1, 0))
    assert seen == [[own, earlier], [own, own]]


@pytest.mark.parametrize("direction", ["down", "up", "right", "left"])
def test_macow_sees_strictly_earlier_rows(direction: str) -> None:
    layer = mintnet.MaCowLayer((2, 5, 5), direction, 4, reach=2, breadth=3)
    layer = away_from_zero(layer, 1).double()
    x = _double(1, 2, 5, 5).requires_grad_()
    layer.conditioner(x)[0][0, 0, 2, 2].backward()
    seen = (x.grad[0] != 0).any(0).int().tolist()
    expected = torch.zeros(5, 5, dtype=torch.int)
    expected[0:2, 1:4] = 1
    turn = {"down": expected, "up": expected.flip(0), "right": expected.T}
    turn["left"] = expected.T.flip(1)
    assert seen == turn[direction].tolist()


def test_entry_scaling_starts_from_its_first_batch() -> None:
    scaling = mintnet.EntryScaling((3, 2)).train()
    x = 5 + torch.arange(6).reshape(3, 2) * torch.randn(200, 3, 2) + torch.randn(200, 3, 2)
    y, log_det = scaling(x)
    torch.testing.assert_close(y.mean(0), torch.zeros(3, 2), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0, unbiased=False), torch.ones(3, 2), atol=1e-4, rtol=0)
    assert float((log_det.detach() + x.std(0, unbiased=False).log().sum()).abs().max()) < 1e-4
    with pytest.raises(ValueError, match="constant"):
        mintnet.EntryScaling((2,)).train()(torch.ones(4, 2))
    scaling = mintnet.EntryScaling((3,)).train()  # no inverse yet, and its check must not set it
    for ask in (scaling.inverse, scaling.solve):
        with pytest.raises(RuntimeError, match="first training batch"):
            ask(torch.randn(4, 3))
    assert not bool(scaling.is_set)
    scaling.eval().inverse(torch.randn(4, 3))


@pytest.mark.parametrize("shape", [(5,), (2, 4, 3)], ids=["dense", "conv"])
@pytest.mark.parametrize("training", [False, True])
def test_spectral_norms(shape, training: bool) -> None:
    layer = SpectralLinear(shape, 3, coefficient=0.5).double().train(training)
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
        for _ in range(50 if training else 1):  # in training one iteration follows a small move
            layer.weight.add_(0.001 * torch.randn_like(layer.weight))
            norm = layer.norm()
        size = torch.Size(shape).numel()
        basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
        raw = layer._image(basis, layer.weight).reshape(size, -1)
        torch.testing.assert_close(norm, torch.linalg.matrix_norm(raw, 2), rtol=1e-3, atol=0)
        acts = (layer(basis) - layer(torch.zeros_like(basis))).reshape(size, -1)
        torch.testing.assert_close(float(torch.linalg.matrix_norm(acts, 2)), 0.5, rtol=1e-3, atol=0)


@pytest.mark.parametrize("training", [False, True])
def test_spectral_layers_leave_small_weights_alone_and_notice_new_ones(training: bool) -> None:
    """Weights replaced behind autograd's back, too."""
    layer = SpectralLinear((3,), 3, coefficient=0.9).train(training)
    with torch.no_grad():
        for size, gain in ((0.5, 0.5), (4.0, 0.9), (0.1, 0.1)):
            layer.weight.data.copy_(size * torch.eye(3))
            torch.testing.assert_close(layer(torch.eye(3)) - layer.bias, gain * torch.eye(3))


def test_i_resnet_uses_the_solver_it_is_given_or_refuses_it(raises_with) -> None:
    block = away_from_zero(mintnet.IResNetBlock((6,), 8), 0, 20.0).double().eval()
    z = block(_double(4, 6))[0].detach()
    own = mintnet.ResidualIteration(max_steps=2, tolerance=0)
    for few in (own, mintnet.FixedPoint(0.5, 2, tolerance=0)):
        solution = block.solve(z, few)
        assert solution.steps.tolist() == [2] * 4 and not bool(solution.converged.any())
    assert bool(block.solve(z, mintnet.FixedPoint(0.8, 2000)).converged.all())
    solution = block.solve(z)
    assert bool(solution.converged.all()), solution.message  # for weights as large as these
    assert torch.equal(block.solve(z, mintnet.Auto()).value, solution.value)
    for other in (mintnet.Wavefront(), mintnet.Bisection()):
        for ask in (block.solve, block.inverse):
            with raises_with(ValueError, "ResidualIteration()", "FixedPoint()", other):
                ask(z, other)


@pytest.mark.parametrize("shape", [(4,), (3, 6, 6)], ids=["dense", "conv"])
@pytest.mark.parametrize("gain", [0.0, 4.0], ids=["fresh", "large"])
def test_i_resnet_in_training_mode_stays_the_same_map_while_its_weights_do(shape, gain) -> None:
    """A norm that power iteration moves in each call would make it another map each time."""
    block = mintnet.IResNetBlock(shape, 6).double().train()
    if gain:
        away_from_zero(block, 1, gain)
    x = _double(3, *shape)
    z = block(x)[0].detach()
    assert torch.equal(block(x)[0], z)
    torch.testing.assert_close(block.inverse(z).detach(), x, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(block.eval()(x)[0].detach(), z, rtol=1e-9, atol=1e-9)


def test_the_truncated_series_has_the_bias_that_it_must_have() -> None:
    """With g(x) = a x and probes of v·v = D on average: Σ (−1)ᵏ⁺¹ aᵏ / k, cut after n terms."""
    block = mintnet.IResNetBlock((4,), 4, coefficient=0.9, terms=3).double().eval()
    with torch.no_grad():
        for layer, size in zip(block.g[::2], (1.0, 1.0, 0.8), strict=True):
            layer.weight.copy_(size * torch.eye(4))
            layer.bias.fill_(50.0 if size == 1.0 else 0.0)  # ELU is the identity there
        log_det = block(torch.zeros(40_000, 4, dtype=torch.float64))[1]
    a = 0.9 * 0.9 * 0.8  # the first two are cut down to the coefficient
    expected = 4 * (a - a**2 / 2 + a**3 / 3)
    assert float(log_det.mean()) == pytest.approx(expected, rel=0.02)
    assert abs(expected - 4 * torch.tensor(1 + a).log().item()) > 0.05


def test_ffjord_inverts_its_own_integral_exactly() -> None:
    """Four steps are far from the flow itself, and still there and back is exact."""
    flow = away_from_zero(mintnet.FFJORD((4,), 8, "rk4", steps=4), 1, 2.0).double()
    x = _double(3, 4)
    with torch.no_grad():
        z = flow(x)[0]
        solution = flow.solve(z)
        assert bool(solution.converged.all()) and float(solution.residual.max()) < 1e-13
        rough = flow._move(z, 1.0, 0.0)
    torch.testing.assert_close(solution.value, x, rtol=1e-11, atol=1e-11)
    z.requires_grad_()  # the value is the verified one when gradients are wanted, too
    assert torch.equal(flow.inverse(z), solution.value)
    assert float((rough - x).abs().max()) > 1e-6


def test_ffjord_without_torchdiffeq_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest, **kw):
        if name.startswith("torchdiffeq"):
            raise ImportError(name)
        return real(name, *rest, **kw)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r'pip install "mintnet\[ffjord\]".*rk4'):
        mintnet.FFJORD((3,))
    mintnet.FFJORD((3,), method="rk4")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: mintnet.RealNVPCoupling((1, 4, 4), "channel"), ("halves", "(1, 4, 4)", "Squeeze")),
        (lambda: mintnet.NICECoupling((1,)), ("two halves", "(1,)")),
        (lambda: mintnet.NICECoupling((4,), "thirds"), ("partition", "thirds", "checkerboard")),
        (lambda: mintnet.RealNVPCoupling((4,), scale="relu"), ("scale", "relu", "softplus")),
        (lambda: mintnet.MAF((3, 4)), ("(D,)", "(C, H, W)", "(3, 4)")),
        (lambda: mintnet.MAF((3,), filters=0), ("filters", "at least 1")),
        (lambda: mintnet.MaCowLayer((4,)), ("(C, H, W)", "(4,)")),
        (lambda: mintnet.MaCowLayer((1, 4, 4), "sideways"), ("direction", "sideways", "down, up")),
        (lambda: mintnet.MaCowLayer((1, 4, 4), breadth=4), ("breadth", "odd", "4")),
        (lambda: mintnet.EmergingFactor(2, (4, 4), kernel_size=2), ("kernel_size", "odd", "2")),
        (lambda: mintnet.glow_step(4, (2, 2), mixing="fft"), ("mixing", "fft", "1x1, emerging")),
        (lambda: mintnet.IResNetBlock((3,), coefficient=1.0), ("between 0 and 1", "1.0")),
        (lambda: mintnet.IResNetBlock((3, 4)), ("(D,)", "(C, H, W)", "(3, 4)")),
        (lambda: mintnet.FFJORD((0,), method="rk4"), ("(D,)", "(C, H, W)", "(0,)")),
        (lambda: mintnet.RealNVPCoupling((4,), hidden=0), ("hidden", "at least 1", "0")),
        (lambda: mintnet.FFJORD((3,), method="euler"), ("method", "euler", "dopri5 or rk4")),
        (lambda: mintnet.Reshape((2, 3), (5,)), ("6 entries", "(5,)", "5")),
        (lambda: mintnet.ChannelPermutation(torch.tensor([0, 0]), (2, 1, 1)), ("once", "[0, 0]")),
        (
            lambda: HalfConditioner(nn.Linear(4, 3), "channel", outputs=2)(torch.zeros(1, 4)),
            ("2 outputs", "(1, 8)", "(1, 3)"),
        ),
    ],
)
def test_mistakes(make, words, raises_with) -> None:
    with raises_with(ValueError, *words):
        make()

"""Layers of other flows: proved from their structure, and refused without their positivity."""

import pytest
import torch
from torch import nn

from mintnet import MAF, EmergingFactor, MaCowLayer, NICECoupling, NotProvedError, RealNVPCoupling
from mintnet.calculus import (
    LOWER,
    Exp,
    Function,
    HalfConditioner,
    MaskedConv2d,
    Ordering,
    OrderingError,
    Verdict,
    certify,
    variable,
)
from mintnet.calculus.ordering import ORDERS
from mintnet.flows.couplings import SCALES
from registry import away_from_zero

AFFINE = {
    "real-nvp-checkerboard": lambda shape, **kw: RealNVPCoupling(shape, "checkerboard", **kw),
    "real-nvp-channel": lambda shape, **kw: RealNVPCoupling(shape, "channel", **kw),
    "maf": lambda shape, **kw: MAF(shape, 2, **kw),
    "macow": lambda shape, **kw: MaCowLayer((*shape, 4, 4)[:3], hidden=4, **kw),
}
by_shape = pytest.mark.parametrize("shape", [(6,), (2, 4, 4)], ids=["vector", "image"])
by_layer = pytest.mark.parametrize("make", AFFINE.values(), ids=AFFINE)


@by_shape
@by_layer
@pytest.mark.parametrize("scale", [name for name in SCALES if name != "raw"])
def test_positive_scales_are_proved_onto_for_any_weights(make, shape, scale: str) -> None:
    layer = make(shape, scale=scale)
    for gain in (0.0, 1.0, 100.0):
        proof = away_from_zero(layer, 1, gain).certify()
        assert proof.onto and proof.blame is None, proof.message


def _raw(layer):
    """The layer with a scale that need not be positive, as no constructor gives it."""
    layer.scale_name = "raw"
    return layer


@by_shape
@by_layer
def test_without_positivity_they_are_refused_with_the_part_to_blame(make, shape) -> None:
    with pytest.raises(NotProvedError, match=r"the product of values in .* can have a slope in"):
        make(shape, scale="raw")
    layer = _raw(away_from_zero(make(shape), 2))
    proof = layer.certify()
    assert not proof.injective and "[-inf, inf]" in str(proof.blame)
    if not isinstance(layer, MaCowLayer):  # of its network nothing is known, not even in row 0
        first = proof.verdict.flatten()[layer.ordering.rank(layer.event_shape).argmin()]
        assert int(first) == Verdict.ONTO  # the first entry depends on nothing


def test_the_blame_of_a_coupling_names_its_network_and_an_entry_of_its_second_half() -> None:
    proof = _raw(RealNVPCoupling((1, 2, 2))).certify()
    assert "HalfConditioner" in str(proof.blame) and "entry (0, 0, 1)" in str(proof.blame)
    assert proof.verdict.flatten().tolist() == [2, 0, 0, 2]


def test_raw_layers_are_proved_again_before_they_are_inverted() -> None:
    layer = MAF((1,), scale="raw")  # one entry: a constant scale, proved for these weights
    layer.inverse(torch.zeros(1, 1))
    with torch.no_grad():
        layer.to_scale.bias.fill_(-1.0)
    with pytest.raises(NotProvedError):
        layer.inverse(torch.zeros(1, 1))


def test_constant_slopes_are_bounds_of_themselves() -> None:
    factors = (EmergingFactor(3, (4, 4), upper=upper) for upper in (False, True))
    for layer in (*factors, NICECoupling((3, 4, 4)), NICECoupling((3, 4, 4), "channel")):
        slope = away_from_zero(layer, 1).evaluate(torch.zeros(1, 3, 4, 4))[1][0].double()
        proof = layer.certify()
        torch.testing.assert_close((proof.low, proof.high), (slope, slope), rtol=1e-12, atol=0)


class Both(Function):
    """A coupling and a masked convolution inside one function."""

    def __init__(self, partition: str) -> None:
        super().__init__()
        self.network = HalfConditioner(nn.Conv2d(2, 2, 3, padding=1), partition)
        self.conv = MaskedConv2d(2, strict=True)

    def forward(self, x):
        return x * Exp()(self.conv(x)) + x.conditioned(self.network)[0]


def test_orderings_do_not_mix_and_channel_couplings_live_in_the_raster() -> None:
    x = variable(torch.zeros(1, 2, 4, 4))
    with pytest.raises(OrderingError, match=r"checkerboard ordering .* raster|raster .* checkerb"):
        certify(Both("checkerboard"), (2, 4, 4))
    with pytest.raises(OrderingError):
        Both("checkerboard")(x)
    assert certify(Both("channel"), (2, 4, 4)).onto
    assert Both("channel")(x).ordering == LOWER


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("shape", [(5,), (2, 3, 4), (3, 1, 2), (1, 5, 5)])
def test_ranks_are_permutations(name: str, shape) -> None:
    rank = Ordering(False, name).rank(shape)
    assert rank.shape == shape
    assert sorted(rank.flatten().tolist()) == list(range(rank.numel()))
    assert torch.equal(rank.max() - rank, Ordering(True, name).rank(shape))


def test_ranks_by_hand() -> None:
    for name, shape, expected in (
        ("pixel", (2, 2, 2), [0, 2, 4, 6, 1, 3, 5, 7]),
        ("row", (2, 2, 2), [0, 1, 4, 5, 2, 3, 6, 7]),
        ("column", (2, 2, 2), [0, 4, 1, 5, 2, 6, 3, 7]),
        ("checkerboard", (1, 2, 3), [0, 3, 1, 4, 2, 5]),
    ):
        assert Ordering(name=name).rank(shape).flatten().tolist() == expected
    with pytest.raises(ValueError, match="unknown ordering 'spiral'; choose one of raster"):
        Ordering(name="spiral")

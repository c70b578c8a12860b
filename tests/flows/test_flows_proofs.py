"""Layers of other flows: proved from their structure, and refused without their positivity."""

import pytest

from mintnet import MAF, MaCowLayer, RealNVPCoupling

AFFINE = {
    "real-nvp-checkerboard": lambda shape, **kw: RealNVPCoupling(shape, "checkerboard", **kw),
    "real-nvp-channel": lambda shape, **kw: RealNVPCoupling(shape, "channel", **kw),
    "maf": lambda shape, **kw: MAF(shape, 2, **kw),
    "macow": lambda shape, **kw: MaCowLayer((*shape, 4, 4)[:3], hidden=4, **kw),
}
by_shape = pytest.mark.parametrize("shape", [(6,), (2, 4, 4)], ids=["vector", "image"])
by_layer = pytest.mark.parametrize("make", AFFINE.values(), ids=AFFINE)

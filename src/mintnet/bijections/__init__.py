"""Bijections: maps with exact log-determinants and certified inverses."""

from mintnet.bijections.base import AnalyticBijection, Bijection
from mintnet.bijections.chain import Chain
from mintnet.bijections.field import (
    FFJORD,
    MAF,
    ChannelPermutation,
    EmergingFactor,
    EntryScaling,
    IResNetBlock,
    MaCowLayer,
    NICECoupling,
    Planar,
    RealNVPCoupling,
    Sylvester,
    emerging_convolution,
    glow_step,
    iaf,
    invertible_1x1,
    macow_unit,
)
from mintnet.bijections.flip import Flip
from mintnet.bijections.inverse import Inverse
from mintnet.bijections.logit import Logit
from mintnet.bijections.mint import MintLayer, paired_mint
from mintnet.bijections.norm import ActNorm, BatchNorm
from mintnet.bijections.reshape import Reshape
from mintnet.bijections.squeeze import Squeeze
from mintnet.bijections.triangular import Composed, TriangularBijection

__all__ = [
    "FFJORD",
    "MAF",
    "ActNorm",
    "AnalyticBijection",
    "BatchNorm",
    "Bijection",
    "Chain",
    "ChannelPermutation",
    "Composed",
    "EmergingFactor",
    "EntryScaling",
    "Flip",
    "IResNetBlock",
    "Inverse",
    "Logit",
    "MaCowLayer",
    "MintLayer",
    "NICECoupling",
    "Planar",
    "RealNVPCoupling",
    "Reshape",
    "Squeeze",
    "Sylvester",
    "TriangularBijection",
    "emerging_convolution",
    "glow_step",
    "iaf",
    "invertible_1x1",
    "macow_unit",
    "paired_mint",
]

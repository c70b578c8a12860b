"""Layers of other flows: members of F from our own parts, and some outside F to compare with."""

from mintnet.bijections.field.emerging import EmergingFactor, emerging_convolution
from mintnet.bijections.field.ffjord import FFJORD, MissingExtraError
from mintnet.bijections.field.glow import ChannelPermutation, glow_step, invertible_1x1
from mintnet.bijections.field.i_resnet import IResNetBlock
from mintnet.bijections.field.macow import MaCowLayer, macow_unit
from mintnet.bijections.field.maf import MAF, iaf
from mintnet.bijections.field.nice import EntryScaling, NICECoupling
from mintnet.bijections.field.planar import Planar
from mintnet.bijections.field.real_nvp import RealNVPCoupling
from mintnet.bijections.field.sylvester import Sylvester

__all__ = [
    "FFJORD",
    "MAF",
    "ChannelPermutation",
    "EmergingFactor",
    "EntryScaling",
    "IResNetBlock",
    "MaCowLayer",
    "MissingExtraError",
    "NICECoupling",
    "Planar",
    "RealNVPCoupling",
    "Sylvester",
    "emerging_convolution",
    "glow_step",
    "iaf",
    "invertible_1x1",
    "macow_unit",
]

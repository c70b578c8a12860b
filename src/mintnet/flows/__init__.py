"""Layers of other flows: members of F from our own parts, and some outside F to compare with."""

from mintnet.flows.couplings import NICECoupling, RealNVPCoupling
from mintnet.flows.emerging import EmergingFactor, emerging_convolution
from mintnet.flows.ffjord import FFJORD, MissingExtraError
from mintnet.flows.glow import ChannelPermutation, glow_step, invertible_1x1
from mintnet.flows.i_resnet import IResNetBlock
from mintnet.flows.macow import MaCowLayer, macow_unit
from mintnet.flows.maf import MAF, iaf
from mintnet.flows.planar import Planar
from mintnet.flows.scaling import EntryScaling
from mintnet.flows.sylvester import Sylvester

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

"""Layers of other flows: members of F from our own parts, and some outside F to compare with."""

from mintnet.bijections.norm import EntryScaling
from mintnet.bijections.permutations import ChannelPermutation
from mintnet.flows.autoregressive import MAF, MaCowLayer, iaf, macow_unit
from mintnet.flows.couplings import NICECoupling, RealNVPCoupling
from mintnet.flows.ffjord import FFJORD
from mintnet.flows.glow import EmergingFactor, emerging_convolution, glow_step, invertible_1x1
from mintnet.flows.i_resnet import IResNetBlock

__all__ = ["FFJORD", "MAF", "ChannelPermutation", "EmergingFactor", "EntryScaling", "IResNetBlock"]
__all__ += ["MaCowLayer", "NICECoupling", "RealNVPCoupling", "emerging_convolution", "glow_step"]
__all__ += ["iaf", "invertible_1x1", "macow_unit"]

"""Bijections and density models as parts of torch.distributions."""

from mintnet.distributions.flow import FlowDistribution
from mintnet.distributions.transform import BijectionTransform

__all__ = ["BijectionTransform", "FlowDistribution"]

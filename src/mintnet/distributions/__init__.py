"""Bijections and density models as parts of torch.distributions; other libraries' flows."""

from mintnet.distributions.accelerated import accelerate
from mintnet.distributions.flow import FlowDistribution
from mintnet.distributions.transform import BijectionTransform

__all__ = ["BijectionTransform", "FlowDistribution", "accelerate"]

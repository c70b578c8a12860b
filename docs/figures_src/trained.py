"""The trained network, and what each of its layers has to invert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import mintnet
from figures_src.parts import ROOT
from mintnet import MintLayer, Wavefront

CHECKPOINT = ROOT / "tests" / "fixtures" / "trained_mnist.pth"
EASY, HARD = 12, 8


@dataclass(frozen=True)
class Target:
    """A trained layer, counted from 1 in the order of the forward pass, with what to invert."""

    number: int
    layer: MintLayer
    z: Tensor
    x: Tensor


@torch.no_grad()
def targets(samples: int) -> dict[int, Target]:
    """Every layer with the z that belongs to samples from noise, by the wavefront."""
    flow = mintnet.import_original(CHECKPOINT)
    z = flow.sample_latents(samples, seed=0)
    found, number = {}, len(flow.net.layers())
    for part in reversed(flow.net.chain.leaves()):
        x = part.solve(z, Wavefront()).require("")
        if isinstance(part, MintLayer):
            found[number] = Target(number, part, z, x)
            number -= 1
        z = x
    return dict(sorted(found.items()))

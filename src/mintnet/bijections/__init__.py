"""Bijections: maps with exact log-determinants and verified inverses."""

from mintnet.bijections.base import AnalyticBijection, Bijection, EntrywiseBijection
from mintnet.bijections.chain import Chain, Inverse
from mintnet.bijections.equalize import Equalize
from mintnet.bijections.logit import Logit, Rescale, Unchanged
from mintnet.bijections.mint import MintLayer, paired_mint
from mintnet.bijections.mixture import MixtureLayer
from mintnet.bijections.norm import ActNorm, BatchNorm
from mintnet.bijections.permutations import Flip, Permutation, Reshape, Squeeze
from mintnet.bijections.triangular import Composed, TriangularBijection

__all__ = ["AnalyticBijection", "Bijection", "EntrywiseBijection", "TriangularBijection"]
__all__ += ["Chain", "Composed", "Inverse", "MintLayer", "MixtureLayer", "paired_mint"]
__all__ += ["ActNorm", "BatchNorm", "Equalize", "Logit", "Rescale", "Unchanged"]
__all__ += ["Flip", "Permutation", "Reshape", "Squeeze"]

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

__all__ = [
    "ActNorm",
    "AnalyticBijection",
    "BatchNorm",
    "Bijection",
    "Chain",
    "Composed",
    "EntrywiseBijection",
    "Equalize",
    "Flip",
    "Inverse",
    "Logit",
    "MintLayer",
    "MixtureLayer",
    "Permutation",
    "Rescale",
    "Reshape",
    "Squeeze",
    "TriangularBijection",
    "Unchanged",
    "paired_mint",
]

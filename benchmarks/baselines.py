"""Two simple density models to compare with, with the same bookkeeping of bits per dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mintnet.bijections import Logit
from mintnet.data import ImageData
from mintnet.models.flow import LAMBDAS
from mintnet.models.noise import uniform_noise


def histogram_bits_per_dim(train: ImageData, test: ImageData) -> float:
    """Bits per dimension of independent pixels, each with its own histogram (Laplace's rule).

    Examples:
        >>> grey = ImageData("grey", torch.tensor([0, 1, 1]).byte().reshape(3, 1, 1, 1), levels=2)
        >>> round(histogram_bits_per_dim(grey, grey), 3)   # log2 of 5/2, 5/3, 5/3
        0.932
    """
    _same_kind(train, test)
    pixels = train.images.flatten(1).long()
    counts = torch.ones(pixels.shape[1], train.levels, dtype=torch.float64)
    counts.scatter_add_(1, pixels.T, torch.ones_like(pixels.T, dtype=torch.float64))
    bits = -(counts / counts.sum(1, keepdim=True)).log2()
    return float(bits.gather(1, test.images.flatten(1).long().T).mean())


def gaussian_bits_per_dim(
    train: ImageData, test: ImageData, logit_lambda: float = LAMBDAS["digits"], draws: int = 4
) -> float:
    """Bits per dimension of a Gaussian with full covariance on the dequantized logits.

    Σ is shrunk towards its diagonal by the share that suits a fifth of the training images best.

    Examples:
        >>> from mintnet.data import load
        >>> 2.2 < gaussian_bits_per_dim(load("digits", "train"), load("digits", "test")) < 2.3
        True
    """
    _same_kind(train, test)
    y, _ = _logits(train, logit_lambda, draws, seed=0)
    held = torch.arange(len(train)).repeat(draws) % 5 == 0
    shares = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
    best = max(shares, key=lambda share: float(_log_density(y[~held], share, y[held]).mean()))
    test_y, log_det = _logits(test, logit_lambda, draws, seed=1)
    nats = _log_density(y, best, test_y) + log_det - y.shape[1] * math.log(train.levels)
    return float(-nats.mean() / (y.shape[1] * math.log(2)))


def _logits(data: ImageData, lam: float, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Dequantized logits of every image and draw, (draws · N, D), and their log-determinants."""
    index = torch.arange(len(data))
    noise = [uniform_noise(seed, k, index, data.shape, torch.float64) for k in range(draws)]
    x = (data.images.double() + torch.stack(noise)) / data.levels
    return Logit(lam).transform(x.reshape(-1, math.prod(data.shape)))


def _log_density(y: Tensor, shrinkage: float, points: Tensor) -> Tensor:
    """Log-density at points of the Gaussian with the mean and the shrunk covariance of y."""
    covariance = torch.atleast_2d(y.T.cov())
    diagonal = torch.diag(covariance.diagonal())
    factor = torch.linalg.cholesky((1 - shrinkage) * covariance + shrinkage * diagonal)
    white: Tensor = torch.linalg.solve_triangular(factor, (points - y.mean(0)).T, upper=False)
    constant = factor.diagonal().log().sum() + 0.5 * y.shape[1] * math.log(2 * math.pi)
    nats: Tensor = -0.5 * (white * white).sum(0) - constant
    return nats


def _same_kind(train: ImageData, test: ImageData) -> None:
    if (train.shape, train.levels) != (test.shape, test.levels):
        raise ValueError(
            f"the two sets must be of one kind; got {train.shape} with {train.levels} levels and "
            f"{test.shape} with {test.levels}"
        )

"""Invertible normalization: batch normalization, act norm, and a scale for each entry."""

import torch
from torch import Tensor, nn

from mintnet.bijections.base import EntrywiseBijection
from mintnet.calculus.masks import check_positive


class BatchNorm(EntrywiseBijection):
    r"""Batch normalization: y = γ (x − μ) / √(σ² + ε) + β for each channel.

    In evaluation mode μ and σ² are the running statistics, and the map is affine and invertible.
    In training mode they come from the batch, and `inverse` and `solve` raise: each output depends
    on every sample. Shapes: (batch, C, H, W).

    Examples:
        >>> norm = BatchNorm(2).eval()
        >>> x = torch.randn(3, 2, 4, 4)
        >>> bool(torch.allclose(norm.inverse(norm(x)[0]), x, atol=1e-6))
        True
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        check_positive(channels=channels)
        self.channels, self.eps, self.momentum = channels, eps, momentum
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _check_channels(x, self.channels, "BatchNorm")
        mean, variance = self._batch_statistics(x) if self.training else (self.mean, self.variance)
        slope = (self.scale / (variance + self.eps).sqrt())[:, None, None]
        y = (x - mean[:, None, None]) * slope + self.shift[:, None, None]
        return y, slope.abs().log().expand_as(x)

    def invert(self, z: Tensor) -> Tensor:
        if self.training:
            why = "each output depends on every sample of the batch. Call .eval() first."
            raise RuntimeError(f"BatchNorm has no inverse in training mode: {why}")
        _check_channels(z, self.channels, "the inverse of BatchNorm")
        slope = (self.scale / (self.variance + self.eps).sqrt())[:, None, None]
        return (z - self.shift[:, None, None]) / slope + self.mean[:, None, None]

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes, count = (0, 2, 3), x.numel() // self.channels
        if count < 2:
            wanted = "BatchNorm in training mode needs more than one value for each channel"
            raise ValueError(f"{wanted}; got {tuple(x.shape)}. Use a larger batch, or .eval().")
        mean, variance = x.mean(axes), x.var(axes, unbiased=False)
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean), self.momentum)
            self.variance.lerp_(variance.to(self.variance) * count / (count - 1), self.momentum)
        return mean, variance

    def extra_repr(self) -> str:
        return f"{self.channels}"


class EntryScaling(EntrywiseBijection):
    """y = exp(s) ⊙ (x + b), with one s and one b for each entry: the top layer of NICE.

    They are set by the first training batch, which comes out with mean 0 and variance 1; afterwards
    they are ordinary weights. Log-determinant: Σ s.

    Examples:
        >>> EntryScaling((2,))(torch.tensor([[1.0, 0.0], [3.0, 8.0]]))[0]
        tensor([[-1., -1.],
                [ 1.,  1.]], grad_fn=<...>)
    """

    is_set: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.event_shape = tuple(shape)
        self.log_scale = nn.Parameter(torch.zeros(shape))
        self.shift = nn.Parameter(torch.zeros(shape))
        self.register_buffer("is_set", torch.tensor(False))

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not bool(self.is_set):
            self.set_from(x)
        log_scale = self._like(x, self.log_scale)
        return (x + self._like(x, self.shift)) * log_scale.exp(), log_scale.expand_as(x)

    def invert(self, z: Tensor) -> Tensor:
        if self.training and not bool(self.is_set):
            why = "the first training batch sets it. Run one, or call .eval() to use it as it is."
            raise RuntimeError(f"{type(self).__name__} has no inverse yet: {why}")
        return z * self._like(z, -self.log_scale).exp() - self._like(z, self.shift)

    @torch.no_grad()
    def set_from(self, x: Tensor) -> None:
        axes = (0, *range(1 + self.shift.dim(), x.dim()))  # all but those of the weights
        deviation = x.std(axes, unbiased=False)
        if not bool((deviation > 0).all()):
            entry = "channel" if isinstance(self, ActNorm) else "entry"
            why = f"at least one {entry} is constant in it. Start from different samples."
            raise ValueError(f"{type(self).__name__} cannot start from this batch: {why}")
        self.shift.copy_(-x.mean(axes))
        self.log_scale.copy_(-deviation.log())
        self.is_set.fill_(True)

    def _like(self, x: Tensor, values: Tensor) -> Tensor:
        """Weights with as many axes as a sample of x."""
        return values.reshape(*values.shape, *(1,) * (x.dim() - 1 - values.dim()))

    def extra_repr(self) -> str:
        return ", ".join(map(str, self.shift.shape))


class ActNorm(EntryScaling):
    """y = exp(s) ⊙ (x + b) for each channel, with s and b set by the first training batch.

    Log-determinant: H · W · Σ s. Shapes: (batch, C, H, W), or vectors (batch, C), where H · W = 1.

    Examples:
        >>> norm = ActNorm(2)
        >>> y, _ = norm(5 + 3 * torch.randn(64, 2, 8, 8))
        >>> bool(y.mean().abs() < 1e-4), norm.is_set.item()
        (True, True)
    """

    def __init__(self, channels: int) -> None:
        check_positive(channels=channels)
        super().__init__((channels,))
        self.channels, self.event_shape = channels, None

    def log_slopes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _check_channels(x, self.channels, "ActNorm", vectors=True)
        return super().log_slopes(x)

    def invert(self, z: Tensor) -> Tensor:
        _check_channels(z, self.channels, "the inverse of ActNorm", vectors=True)
        return super().invert(z)


def _check_channels(x: Tensor, channels: int, name: str, vectors: bool = False) -> None:
    if x.dim() not in ((2, 4) if vectors else (4,)) or x.shape[1] != channels:
        shape = f"(batch, {channels}, H, W)" + f" or (batch, {channels})" * vectors
        raise ValueError(f"{name} expects input of shape {shape}; got {tuple(x.shape)}")

"""Linear layers with a bounded Lipschitz constant, by spectral normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SETTLED = 1e-9
"""Power iterations in evaluation mode stop when the norm moves by less than this share."""


class SpectralLinear(nn.Module):
    r"""A dense layer or a convolution with W / max(1, ‖W‖ / c) in the place of W.

    ‖W‖ is the largest singular value of the map on whole samples, found by power iteration: one
    step from the last estimate in training, until it settles in evaluation (once for the
    weights as they are). It approaches the norm from below, so that c should leave some room.

    Args:
        shape: of one input sample, (D,) or (C, H, W).
        out: features or channels that go out.
        kernel_size: R, odd, for images.
        coefficient: c.

    Examples:
        >>> layer = SpectralLinear((4,), 4, coefficient=0.5).eval()
        >>> with torch.no_grad():
        ...     layer.weight.copy_(3 * torch.eye(4))
        ...     layer(torch.ones(1, 4)) - layer.bias
        Parameter ...
        tensor([[0.5000, 0.5000, 0.5000, 0.5000]])
    """

    vector: Tensor

    def __init__(
        self, shape: tuple[int, ...], out: int, kernel_size: int = 3, coefficient: float = 0.9
    ) -> None:
        super().__init__()
        taps = (kernel_size, kernel_size) if len(shape) == 3 else ()
        self.weight = nn.Parameter(torch.empty(out, shape[0], *taps))
        self.bias = nn.Parameter(torch.zeros(out))
        nn.init.orthogonal_(self.weight)
        self.coefficient = coefficient
        self.register_buffer("vector", torch.randn(1, *shape))
        self._settled_for: tuple[object, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm()
        weight = self.weight / torch.clamp(norm / self.coefficient, min=1)
        bias = self.bias if x.dim() == 2 else self.bias[:, None, None]
        return self._image(x, weight) + bias

    def norm(self) -> Tensor:
        """‖W‖ for the weights as they are, differentiable in them."""
        if self.training:
            self._iterate(1)
        else:
            self._settle()
        u = self.vector.clone()  # the buffer moves with the next step; backward needs this one
        v = self._image(u, self.weight)
        return torch.sqrt((v * v).sum())

    @torch.no_grad()
    def _iterate(self, steps: int) -> None:
        weight = self.weight.detach()
        u = self.vector
        for _ in range(steps):
            u = self._transposed(self._image(u, weight), weight)
            u = u / u.norm().clamp(min=1e-30)
        self.vector.copy_(u)

    @torch.no_grad()
    def _settle(self) -> None:
        weight = self.weight
        present = (weight.data_ptr(), weight._version, weight.dtype, weight.device)
        if present == self._settled_for:
            return
        enough = max(SETTLED, 4 * torch.finfo(weight.dtype).eps)
        self._iterate(1)
        last = self._image(self.vector, weight).norm()
        for _ in range(200):
            self._iterate(10)
            now = self._image(self.vector, weight).norm()
            if bool((now - last).abs() <= enough * now):
                break
            last = now
        self._settled_for = present

    def _image(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dim() == 2:
            return x @ weight.T
        return F.conv2d(x, weight, padding=weight.shape[-1] // 2)

    @staticmethod
    def _transposed(y: Tensor, weight: Tensor) -> Tensor:
        if y.dim() == 2:
            return y @ weight
        return F.conv_transpose2d(y, weight, padding=weight.shape[-1] // 2)

"""Linear layers with a bounded Lipschitz constant, by spectral normalization."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SETTLED = 1e-9
"""Power iterations stop when the norm moves by less than this share."""

MOVED_LITTLE = 1e-2
"""In training one iteration is enough if the norm moves by less than this share in it."""


class SpectralLinear(nn.Module):
    r"""A dense layer or a convolution with W / max(1, ‖W‖ / c) in the place of W.

    ‖W‖ is the largest singular value of the map on whole samples, by power iteration: until it
    settles for new weights, one step for weights that a training step has moved a little, none
    for the same weights. It approaches the norm from below, so that c should leave some room.

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
        self._seen_gain: float | None = None  # ‖W u‖ when u was last moved
        self._settled = False

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight / torch.clamp(self.norm() / self.coefficient, min=1)
        bias = self.bias if x.dim() == 2 else self.bias[:, None, None]
        return self._image(x, weight) + bias

    def norm(self) -> Tensor:
        """‖W‖ for the weights as they are, differentiable in them."""
        if self.weight.is_cuda and torch.cuda.is_current_stream_capturing():
            self._iterate(1 if self.training else 0)  # nothing can be compared here
        else:
            self._keep_up()
        u = self.vector.clone()  # the buffer moves with the next step; backward needs this one
        v = self._image(u, self.weight)
        return torch.sqrt((v * v).sum())

    @torch.no_grad()
    def _iterate(self, steps: int) -> None:
        u = self.vector
        for _ in range(steps):
            u = self._transposed(self._image(u, self.weight), self.weight)
            u = u / u.norm().clamp(min=1e-30)
        self.vector.copy_(u)

    @torch.no_grad()
    def _keep_up(self) -> None:
        """Move u if the weights have changed since it was last moved, however that was done."""
        gain = self._gain()
        if gain == self._seen_gain and (self.training or self._settled):
            return
        small_step = False
        if self.training and self._seen_gain is not None:
            self._iterate(1)
            small_step = self._gain() <= (1 + MOVED_LITTLE) * gain
        if not small_step:
            self._settle()
        self._seen_gain, self._settled = self._gain(), not small_step

    def _settle(self) -> None:
        enough = max(SETTLED, 4 * torch.finfo(self.weight.dtype).eps)
        self._iterate(1)
        last = self._gain()
        for _ in range(200):
            self._iterate(10)
            now = self._gain()
            if abs(now - last) <= enough * now:
                break
            last = now

    def _gain(self) -> float:
        return float(self._image(self.vector, self.weight.detach()).norm())

    def _image(self, x: Tensor, weight: Tensor) -> Tensor:
        if x.dim() == 2:
            return x @ weight.T
        return F.conv2d(x, weight, padding=weight.shape[-1] // 2)

    @staticmethod
    def _transposed(y: Tensor, weight: Tensor) -> Tensor:
        if y.dim() == 2:
            return y @ weight
        return F.conv_transpose2d(y, weight, padding=weight.shape[-1] // 2)

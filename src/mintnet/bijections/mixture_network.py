"""The network of a mixture layer, which gives the parameters of its mixtures."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mintnet.calculus import Ordering, conv_mask, dense_mask

# (number of a convolution, its input) ↦ its output; None stands for x itself.
Convolve = Callable[[int, Tensor | None], Tensor]
LEAST_LOG_SCALE = -9.0  # much narrower than a grey level, which is 2 / 256 of pixels in [−1, 1]
SLOW = 0.05  # the linear prediction moves slowly: its weights are multiplied by this
EPS = 1e-4
ALIGNED = 8  # matrix units of GPUs take this many channels at once
STEPS = 16  # smooth steps of each entry of an image that the network sees
LOGISTIC_SCALE = 3**0.5 / math.pi  # of a logistic distribution with standard deviation 1


class MixtureNetwork(nn.Module):
    r"""Parameters of a mixture for each entry, from strictly earlier entries.

    The first convolution is strict, all others may see their own entry; of vectors, masked matrices
    stand in their place. Between them: RMS normalization over the features of a group, SiLU, and
    gated residual blocks

        n = h / rms(h),   (u, g) = W² ⊛ silu(W¹ ⊛ n + V c),   h ← h + u · σ(g)

    where c is the context of a sample, if there is one. In the raster order each channel has a
    group of K features, and raw = O silu(n). In the order of pixels all channels share one group of
    C · K features (rounded up to a multiple of 8, as GPUs want it), which sees strictly earlier
    pixels; K features of each channel then see earlier channels x_j of their own pixel as well:

        v_i = silu(P_i n + Σ_{j<i} Q_ij s(x_j)),   raw_i = Σ_{j≤i} O_ij v_j

    The first convolution has a bias for each row and for each column as well, so that the network
    knows where in the image it is. Beside it there is a linear prediction ℓ of each entry from its
    strict neighbours, which the network of images moves by r · d with a last output d of its own.
    Of images, all that see x see s(x) = (x, tanh(a (x − b)), …) of each entry, with smooth steps
    whose slopes a and centres b are learned for each channel: values on one plateau, such as a
    black background under dequantization noise, then look alike, and small differences elsewhere do
    not. Arguments are those of `MixtureLayer`.
    """

    shifts: nn.Parameter | None
    image_steps: nn.Parameter | None
    log_reach: nn.Parameter | None
    row_bias: nn.Parameter | None
    column_bias: nn.Parameter | None

    def __init__(
        self,
        channels: int,
        filters: int,
        size: tuple[int, int] | tuple[()],
        blocks: int,
        components: int,
        ordering: Ordering,
        context: int = 0,
    ) -> None:
        super().__init__()
        self.channels, self.filters, self.blocks = channels, filters, blocks
        self.components, self.context = components, context
        self.members = channels if ordering.name == "pixel" else 1  # channels that share features
        groups, width = channels // self.members, self.members * filters
        width += -width % ALIGNED if self.members > 1 else 0
        self.width = width  # of a group
        wide, point = (3, 1) if size else (None, None)  # kernel sizes
        steps = STEPS if size else 0
        spread = torch.stack([torch.ones(steps), torch.linspace(-4, 4, steps)])[:, None]
        self.image_steps = nn.Parameter(spread.repeat(1, channels, 1)) if size else None
        seen, outputs = 1 + steps, 3 * components + bool(size)
        masked = partial(MaskedConvolution, ordering)
        first = masked(groups, width, self.members * seen, wide, strict=True)
        convolutions = [first]
        for _ in range(blocks):
            convolutions.append(masked(groups, width, width, wide))
            convolutions.append(masked(groups, 2 * width, width, wide, 0.1))
        if self.members > 1:  # P and Q
            self.shared = masked(1, channels * filters, width, point)
            self.own = masked(channels, filters, seen, point, strict=True)
        convolutions.append(masked(channels, outputs, filters, point, 0.02))
        if not size:  # after the normalization, one number without a bias has its sign alone
            nn.init.normal_(first.bias)
        sides = [nn.Parameter(torch.zeros(groups * width, side)) for side in size]
        self.row_bias, self.column_bias = sides or (None, None)
        self.convolutions: list[MaskedConvolution]
        self.convolutions = nn.ModuleList(convolutions)  # type: ignore[assignment]
        shifts = torch.zeros(blocks, groups * width, context)  # at first they change nothing
        self.shifts = nn.Parameter(shifts) if context else None
        self.linear = masked(channels, 1, seen, wide, 0.0, strict=True)
        self.log_reach = nn.Parameter(torch.zeros(channels)) if size else None
        with torch.no_grad():  # components spread over some units of their own scale
            self._head_bias()[:, 1] = 0.05 * torch.linspace(-1, 1, components)

    @property
    def first_bias(self) -> Tensor:
        """That of the first convolution, (C·K, H, W), of vectors (C·K,)."""
        bias = self.convolutions[0].bias
        if self.row_bias is None or self.column_bias is None:
            return bias
        return bias[:, None, None] + self.row_bias[:, :, None] + self.column_bias[:, None]

    @property
    def steps(self) -> Tensor:
        """Slopes s and centres c of the smooth steps of a channel, (2, C, J); of vectors J = 0."""
        none = self.linear.weight.new_zeros(2, self.channels, 0)
        return none if self.image_steps is None else self.image_steps

    @property
    def reach(self) -> Tensor:
        """r, by which the network moves ℓ, (C, 1)."""
        none = self.linear.weight.new_zeros(self.channels)
        return (none if self.log_reach is None else self.log_reach).exp()[:, None]

    def _head_bias(self) -> Tensor:
        """The biases of log π, m and the log-scales in the last convolution, (C, 3, M)."""
        bias: Tensor = self.convolutions[-1].bias.view(self.channels, -1)
        return bias[:, : 3 * self.components].view(self.channels, 3, self.components)

    def context_shifts(self, context: Tensor | None) -> Tensor | None:
        """V c of each block, (blocks, batch, groups, width), from context (batch, features)."""
        got = None if context is None else tuple(context.shape)
        if (got and got[1:]) != ((self.context,) if self.context else None):
            wanted = f"(samples, {self.context})" if self.context else "none"
            hint = "Use layer.given(context) for a layer with context."
            raise ValueError(
                f"context of this layer: expected {wanted}; got {got or 'none'}. {hint}"
            )
        if context is None or self.shifts is None:
            return None
        shifts = torch.einsum("nhf,bf->nbh", self.shifts, context.to(self.shifts.dtype))
        groups = self.channels // self.members
        return shifts.reshape(self.blocks, context.shape[0], groups, self.width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Raw parameters, (batch, C, H, W) → (batch, C, 3·M + 1, H·W); of vectors (…, 3·M, 1)."""
        shifts, (batch, _, *sides) = self.context_shifts(context), x.shape
        seen = self.seen(x)

        def convolve(index: int, u: Tensor | None) -> Tensor:
            if u is not None:
                u = u.reshape(batch, *sides, u.shape[2] * u.shape[3]).movedim(-1, 1)
            convolution = self.convolutions[index]
            y: Tensor = convolution(seen if u is None else u, None if index else self.first_bias)
            parts = convolution.groups, y.shape[1] // convolution.groups
            return y.movedim(1, -1).reshape(batch, math.prod(sides), *parts)

        # Channels are last, as in the memory of the fast path: gradients then need no other layout.
        h = self.features(convolve, None if shifts is None else shifts[:, :, None], -1)
        if self.members > 1:
            own = self.own(seen).movedim(1, -1).reshape(*h.shape[:3], self.channels * self.filters)
            h = own + F.linear(h, self.shared.weight[:, :, 0, 0], self.shared.bias)
        return convolve(len(self.convolutions) - 1, F.silu(h)).movedim(1, -1)

    def features(self, convolve: Convolve, shifts: Tensor | None, axis: int) -> Tensor:
        """Normalized features n behind the last block, on whole images or on one level of them.

        ``axis`` is that of the features of a group; what else there is, the caller's ``convolve``
        decides. ``shifts`` has V c of each block in the same layout.
        """
        h = convolve(0, None)
        for block in range(self.blocks):
            inside = convolve(2 * block + 1, normalized(h, axis))
            inside = F.silu(inside if shifts is None else inside + shifts[block])
            update, gate = convolve(2 * block + 2, inside).chunk(2, axis)
            h = h + update * torch.sigmoid(gate)
        return normalized(h, axis)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Spread steps over the values of x, fit ℓ, make components as wide as what it leaves."""
        if x.dim() == 4:
            some = x.transpose(0, 1).flatten(1)[:, :: max(1, x[:, 0].numel() // 2**16)].float()
            low, high = some.quantile(torch.tensor([0.02, 0.98]).to(some), dim=1).to(x)[..., None]
            self.steps[0] = 8 / (high - low).clamp(min=0.1)
            self.steps[1] = low + (high - low) * torch.linspace(0, 1, STEPS).to(x)
        x = x[:: max(1, x[:, 0].numel() // 2**16)]  # enough for the weights of one entry
        # Normal equations with a small ridge: neighbours may be constant, as a border is.
        masks = self.linear.mask.flatten(1)
        gram = 1e-3 * x.shape[0] * math.prod(x.shape[2:]) * torch.eye(masks.shape[1] + 1).to(x)
        products, squares = x.new_zeros(len(gram), self.channels), x.new_zeros(self.channels)
        for part in x.split(32):
            windows, targets = self.seen(part), part
            if x.dim() == 4:  # (batch · H · W, 9 C (J + 1)), (batch · H · W, C)
                windows = F.unfold(windows, 3, padding=1).transpose(1, 2).flatten(0, 1)
                targets = part.flatten(2).transpose(1, 2).flatten(0, 1)
            windows = torch.cat([windows, torch.ones_like(windows[:, :1])], 1)
            gram += windows.T @ windows
            products, squares = products + windows.T @ targets, squares + targets.square().sum(0)
        bias = self._head_bias()
        for channel, mask in enumerate(masks):
            used = F.pad(mask, (0, 1), value=True)
            weights = torch.linalg.solve(gram[used][:, used], products[used, channel])
            self.linear.weight[channel].flatten()[mask] = weights[:-1] / SLOW
            self.linear.bias[channel] = weights[-1] / SLOW
            left = squares[channel] - weights @ products[used, channel]  # ridge included
            left = (left.clamp(min=0) / gram[-1, -1]).sqrt()
            bias[channel, 1] = 0.3 * torch.linspace(-1, 1, self.components)
            bias[channel, 2] = (LOGISTIC_SCALE * left).clamp(min=1e-3).log()
            if self.log_reach is not None:
                self.log_reach[channel] = bias[channel, 2, 0]  # by the width of components

    def seen(self, x: Tensor) -> Tensor:
        """What the first convolution and ℓ see: x and its steps, (batch, C · (1 + J), H, W)."""
        steps = self.steps.view(2, self.channels, -1, *(1,) * (x.dim() - 2))
        return with_steps(x.unsqueeze(2), steps).flatten(1, 2)

    def prediction(self, x: Tensor) -> Tensor:
        """ℓ, of the shape of x."""
        return SLOW * self.linear(self.seen(x))  # type: ignore[no-any-return]

    def parameters_of(
        self, raw: Tensor, prediction: Tensor, reach: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log π, log a, m (..., n, M) and ℓ (..., n), of raw (..., 3·M + 1, n), ℓ and r."""
        parts, moves = raw.split([3 * self.components, raw.shape[-2] - 3 * self.components], -2)
        weight, offset, log_scale = parts.unflatten(-2, (3, self.components)).unbind(-3)
        return (
            weight.mT.log_softmax(-1),
            -log_scale.mT.clamp(min=LEAST_LOG_SCALE),
            offset.mT,
            prediction + reach * moves.sum(-2),  # of vectors there are no moves
        )

    def extra_repr(self) -> str:
        return f"K = {self.filters}, {self.blocks} blocks, {self.components} components"


class MaskedConvolution(nn.Module):
    """A masked convolution, or without kernel size a masked matrix, with copies of each group."""

    mask: Tensor

    def __init__(
        self,
        ordering: Ordering,
        groups: int,
        copies_out: int,
        copies_in: int,
        kernel_size: int | None,
        gain: float = 1.0,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.groups, copies = groups, (groups, copies_out, copies_in)
        if kernel_size is None:
            mask = dense_mask(*copies, ordering.upper, strict=strict)
        else:  # of one group, the mask leaves no row behind the centre
            mask = conv_mask(*copies, kernel_size, ordering.upper, ordering.name, strict)
            rows = mask.any(3).any(1).any(0).nonzero().flatten().tolist()
            self.rows, radius = slice(rows[0], rows[-1] + 1), kernel_size // 2
            self.padding = radius, radius, radius - rows[0], rows[-1] - radius
        self.register_buffer("mask", mask, persistent=False)
        fan_in = mask.flatten(1).sum(1).clamp(min=1).view(-1, *(1,) * (mask.dim() - 1))
        self.weight = nn.Parameter(gain * torch.randn(mask.shape) * mask / fan_in.sqrt())
        self.bias = nn.Parameter(torch.zeros(len(mask)))

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Its image, with another bias, (C·K_out, H, W), in the place of its own if it is given."""
        weight, bias = self.weight * self.mask, self.bias if bias is None else bias
        if weight.dim() == 2:
            return F.linear(x, weight, bias)
        out, weight = len(weight), weight[:, :, self.rows]
        own = bias if bias.dim() == 1 else None
        more, dead = -x.shape[1] % ALIGNED, -out % ALIGNED
        if x.is_cuda and (more or dead):  # convolutions of other widths are several times slower
            weight, x = F.pad(weight, (0, 0, 0, 0, 0, more, 0, dead)), F.pad(x, (0,) * 5 + (more,))
            own = None if own is None else F.pad(own, (0, dead))
        sides = (0, self.padding[0])
        if len(set(self.padding)) == 1:
            sides = self.padding[:2]
        else:
            x = F.pad(x, (0, 0, *self.padding[2:]))
        y = F.conv2d(x, weight, own, padding=sides)[:, :out]
        return y if own is not None else y + bias.to(y.dtype)


def with_steps(x: Tensor, steps: Tensor) -> Tensor:
    """x (…, C, 1, …) and its smooth steps, with their slopes and centres (2, C, J, …)."""
    slopes, centres = steps
    return torch.cat([x, torch.tanh(slopes * (x - centres))], x.dim() - slopes.dim() + 1)


def normalized(h: Tensor, axis: int) -> Tensor:
    """h over its root mean square among the copies of each channel and pixel."""
    exact = torch.promote_types(h.dtype, torch.float32)  # sums of squares in float32 at least
    return h * torch.rsqrt(h.square().mean(axis, keepdim=True, dtype=exact) + EPS).to(h.dtype)

"""A bijection as a transform of torch.distributions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints

from mintnet.bijections import Bijection
from mintnet.bijections.base import REALS
from mintnet.precision import true_float32
from mintnet.solvers import Solver

IMAGE_DIM = 3
"""Axes of one sample where a bijection leaves them open: channel, height, width."""


class BijectionTransform(Transform, nn.Module):
    """A bijection f as a transform: ``t(x)`` is f(x), ``t.inv(y)`` is f⁻¹(y), verified.

    Any number of batch axes may stand before the axes of a sample. ``t.inv`` raises
    `InversionError` where the inverse is not verified, and has gradients in y and in the weights.
    Everything runs in true float32 or float64. Like f, it is a module with the weights of f. Two
    transforms are equal if they hold the same bijection and the same options.

    Args:
        bijection: f.
        cache_size: 1 to remember the last x, y and log-determinant, until a weight changes or a
            gradient is asked for that they lack; 0 not to.
        solver: for the inverse; `Auto` if not given.
        event_dim: how many axes a sample has, for a bijection that takes any shape (`Flip`,
            `Logit`): 3 if not given, as images have. 0 applies it to each entry.

    Shapes: (…, C, H, W) → (…, C', H', W') as the bijection has them; log-determinant (…).

    Examples:
        >>> import mintnet
        >>> from torch.distributions import Normal, TransformedDistribution
        >>> t = BijectionTransform(mintnet.MintLayer(1, 4, (4, 4)))
        >>> x = torch.randn(2, 3, 1, 4, 4)
        >>> t.log_abs_det_jacobian(x, t(x)).shape
        torch.Size([2, 3])
        >>> normal = Normal(torch.zeros(1, 4, 4), 1.0)
        >>> model = TransformedDistribution(normal, [t.inv])   # noise to data is the inverse
        >>> model.rsample((5,)).shape, model.log_prob(x).shape
        (torch.Size([5, 1, 4, 4]), torch.Size([2, 3]))
    """

    bijective = True
    bijection: Bijection
    _cached_x_y: Any

    def __init__(
        self,
        bijection: Bijection,
        cache_size: int = 0,
        *,
        solver: Solver | None = None,
        event_dim: int | None = None,
    ) -> None:
        if not isinstance(bijection, Bijection):
            raise TypeError(
                f"a BijectionTransform takes a bijection; got {type(bijection).__name__}. Of a "
                "density model that is flow.net; FlowDistribution(flow) takes all of it."
            )
        if solver is not None and not isinstance(solver, Solver):
            raise TypeError(f"expected a solver such as mintnet.Auto(); got {solver!r}")
        super().__init__(cache_size=cache_size)
        self.bijection, self.solver = bijection, solver
        self._event_dim = _event_dim(bijection, event_dim)
        shape = bijection.output_shape
        self._output_dim = self._event_dim if shape is None else len(shape)
        self._cached_log_det: Tensor | None = None
        self._cached_stamp: tuple[object, ...] | None = None

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        return _interval(self.bijection.domain, self._event_dim)

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        return _interval(self.bijection.codomain, self._output_dim)

    def with_cache(self, cache_size: int = 1) -> BijectionTransform:
        """The same transform with or without a cache."""
        if cache_size == self._cache_size:
            return self
        return BijectionTransform(
            self.bijection, cache_size, solver=self.solver, event_dim=self._event_dim
        )

    def forward_shape(self, shape: torch.Size) -> torch.Size:
        """The shape of ``t(x)`` for x of that shape."""
        old, new = self.bijection.event_shape, self.bijection.output_shape
        return self._exchange(shape, old, new, self._event_dim)

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        """The shape of ``t.inv(y)`` for y of that shape."""
        old, new = self.bijection.output_shape, self.bijection.event_shape
        return self._exchange(shape, old, new, self._output_dim)

    def __call__(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log |det J(x)| from one evaluation, as zuko asks for them."""
        if self._remembers(x, 0):
            y = self._cached_x_y[1]
            return y, self.log_abs_det_jacobian(x, y)
        shape = self.forward_shape(_shape(x))
        y, log_det = self._evaluate(x)
        y = y.reshape(shape)
        self._remember(x, y, log_det)
        return y, log_det

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """log |det J(x)|; y is not needed. Shape: the batch axes of x."""
        cached = self._remembers(x, 0)
        if cached and self._cached_log_det is not None:
            return self._cached_log_det
        self.forward_shape(_shape(x))
        log_det = self._evaluate(x)[1]
        if cached:
            self._cached_log_det = log_det
        return log_det

    def _inv_call(self, y: Tensor) -> Tensor:
        if self._remembers(y, 1):
            return self._cached_x_y[0]  # type: ignore[no-any-return]
        shape = self.inverse_shape(_shape(y))
        flat, _ = _flat(y, self._output_dim)
        x = (self.bijection.inverse(flat, self.solver) if len(flat) else y).reshape(shape)
        self._remember(x, y, None)
        return x

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat, batch = _flat(x, self._event_dim)
        if not len(flat):
            return x, x.new_zeros(batch)
        with true_float32():
            y, log_det = self.bijection(flat)
        return y, log_det.reshape(batch)

    def _exchange(
        self, shape: torch.Size, old: tuple[int, ...] | None, new: tuple[int, ...] | None, axes: int
    ) -> torch.Size:
        shape = torch.Size(shape)
        cut = len(shape) - axes
        if cut < 0 or (old is not None and tuple(shape[cut:]) != old):
            expected = ", ".join(("…", *map(str, old or ())))
            more = "" if old else f" with at least {axes} axes, its event_dim"
            raise ValueError(f"{self!r} expects shape ({expected}){more}; got {tuple(shape)}")
        return shape if new is None else shape[:cut] + torch.Size(new)

    # The cache. Torch keeps x and y; a stamp beside them says for which weights they hold.

    def _remembers(self, tensor: Tensor, side: int) -> bool:
        """Whether the cache holds for this tensor, as x (side 0) or as y (side 1)."""
        if self._cache_size == 0 or self._cached_x_y[side] is not tensor:
            return False
        graph, *stamp = self._cached_stamp or (False,)
        differentiable = torch.is_grad_enabled() and (
            tensor.requires_grad or any(p.requires_grad for p in self.parameters())
        )
        return stamp == self._stamp(*self._cached_x_y) and bool(graph or not differentiable)

    def _remember(self, x: Tensor, y: Tensor, log_det: Tensor | None) -> None:
        if self._cache_size:
            self._cached_x_y, self._cached_log_det = (x, y), log_det
            self._cached_stamp = (torch.is_grad_enabled(), *self._stamp(x, y))

    def _stamp(self, *pair: Tensor) -> list[object]:
        """What changes when a weight, a buffer, x or y is written to, or a mode is switched."""
        tensors = (*self.parameters(), *self.buffers(), *pair)
        if any(tensor.is_inference() for tensor in tensors):
            return [object()]  # writes to these are not counted: equal to nothing
        marks = [(id(t), t.data_ptr(), t._version, t.requires_grad) for t in tensors]
        return [*marks, *(module.training for module in self.modules())]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BijectionTransform) and (
            self.bijection is other.bijection
            and self.solver == other.solver
            and self._event_dim == other._event_dim
        )

    def __hash__(self) -> int:
        return hash((BijectionTransform, id(self.bijection)))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        if self._cache_size:  # tensors of a graph can be neither copied nor saved
            state.update(_cached_x_y=(None, None), _cached_log_det=None, _cached_stamp=None)
        return state

    def __repr__(self) -> str:
        shapes = self.bijection.event_shape, self.bijection.output_shape
        text = " → ".join(str(shape or "any shape") for shape in dict.fromkeys(shapes))
        return f"BijectionTransform({type(self.bijection).__name__}, {text})"


def _flat(x: Tensor, axes: int) -> tuple[Tensor, torch.Size]:
    """x with its batch axes made into one, and these axes; a sample has so many axes."""
    cut = x.dim() - axes
    batch, event = x.shape[:cut], x.shape[cut:]
    return x.reshape(batch.numel(), *(event or (1,))), batch


def _event_dim(bijection: Bijection, wanted: int | None) -> int:
    """The number of axes of a sample, from the bijection where it has a shape."""
    if wanted is not None and (not isinstance(wanted, int) or wanted < 0):
        raise ValueError(f"event_dim is a number of axes, 0 or more; got {wanted!r}")
    if bijection.event_shape is None:
        return IMAGE_DIM if wanted is None else wanted
    own = len(bijection.event_shape)
    if wanted not in (None, own):
        raise ValueError(
            f"a sample of this {type(bijection).__name__} has {own} axes, "
            f"{bijection.event_shape}; got event_dim={wanted}. Leave event_dim out."
        )
    return own


def _interval(bounds: tuple[float, float], event_dim: int) -> constraints.Constraint:
    low, high = bounds
    if bounds == REALS:
        entry: constraints.Constraint = constraints.real
    elif high == REALS[1]:
        entry = constraints.greater_than(low)
    elif low == REALS[0]:
        entry = constraints.less_than(high)
    else:
        entry = constraints.interval(low, high)
    return constraints.independent(entry, event_dim)


def _shape(x: Tensor) -> torch.Size:
    if not isinstance(x, Tensor):
        raise ValueError(f"a BijectionTransform takes tensors; got {type(x).__name__}")
    return x.shape

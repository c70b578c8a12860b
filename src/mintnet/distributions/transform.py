"""A bijection as a transform of torch.distributions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints

from mintnet.bijections import Bijection
from mintnet.precision import true_float32
from mintnet.solvers import REALS, Solver


class BijectionTransform(Transform, nn.Module):
    """A bijection f as a transform: ``t(x)`` is f(x), ``t.inv(y)`` is f⁻¹(y), verified.

    ``t.inv`` raises `InversionError` where the inverse is not verified, and has gradients in y and
    in the weights. It is a module with the weights of f, and runs in true float32 or float64.

    With a ``cache_size`` of 1 it remembers the last x and y while the weights stay. ``event_dim``
    is the number of axes of a sample, for a bijection that takes any shape (`Flip`, `Logit`): 3 if
    not given, as images have; 0 applies it to each entry.

    Shapes: (…, C, H, W) → (…, C', H', W') with any number of batch axes; log-determinant (…).

    Examples:
        >>> import mintnet
        >>> from torch.distributions import Normal, TransformedDistribution
        >>> t = BijectionTransform(mintnet.MintLayer(1, 4, (4, 4)))
        >>> normal = Normal(torch.zeros(1, 4, 4), 1.0)
        >>> model = TransformedDistribution(normal, [t.inv])   # noise to data is the inverse
        >>> x = model.rsample((5,))
        >>> x.shape, model.log_prob(x).shape
        (torch.Size([5, 1, 4, 4]), torch.Size([5]))
    """

    bijective = True
    bijection: Bijection
    _stamp: object = None  # what the x and y that are remembered belong to, see `_state`

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
        axes, shape = _event_dim(bijection, event_dim), bijection.output_shape
        self._axes = axes, axes if shape is None else len(shape)  # of x, of y

    @constraints.dependent_property(is_discrete=False)
    def domain(self) -> constraints.Constraint:
        return _interval(self.bijection.domain, self._axes[0])

    @constraints.dependent_property(is_discrete=False)
    def codomain(self) -> constraints.Constraint:
        return _interval(self.bijection.codomain, self._axes[1])

    def with_cache(self, cache_size: int = 1) -> "BijectionTransform":
        if cache_size == self._cache_size:
            return self
        solver, axes = self.solver, self._axes[0]
        return BijectionTransform(self.bijection, cache_size, solver=solver, event_dim=axes)

    def inverse_shape(self, shape: torch.Size) -> torch.Size:
        return self.forward_shape(shape, 1)

    def forward_shape(self, shape: torch.Size, side: int = 0) -> torch.Size:
        """The shape of y for that of x (side 0), or of x for that of y (side 1)."""
        shapes = self.bijection.event_shape, self.bijection.output_shape
        old, new, axes = shapes[side], shapes[1 - side], self._axes[side]
        cut = len(shape) - axes
        if cut < 0 or (old is not None and tuple(shape[cut:]) != old):
            expected = ", ".join(("…", *map(str, old or ())))
            more = "" if old else f" with at least {axes} axes, its event_dim"
            raise ValueError(f"{self!r} expects shape ({expected}){more}; got {tuple(shape)}")
        return torch.Size(shape if new is None else (*shape[:cut], *new))

    def __call__(self, x: Tensor) -> Tensor:
        return self._remembering(super().__call__, x)

    def _inv_call(self, y: Tensor) -> Tensor:
        return self._remembering(super()._inv_call, y)

    def _call(self, x: Tensor) -> Tensor:
        return self._evaluate(x)[0]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log |det J(x)| from one evaluation, as zuko asks for them."""
        return self._evaluate(x)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self._evaluate(x)[1]

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat, batch, shape = self._flat(x, 0)
        with true_float32():
            y, log_det = self.bijection(flat)
        return y.reshape(shape), log_det.reshape(batch)

    def _inverse(self, y: Tensor) -> Tensor:
        flat, _, shape = self._flat(y, 1)
        return self._solved(flat).reshape(shape)

    def _solved(self, y: Tensor) -> Tensor:
        return self.bijection.inverse(y, self.solver)

    def _flat(self, x: Tensor, side: int) -> tuple[Tensor, torch.Size, torch.Size]:
        """x with its batch axes made into one, these axes, and the shape of its image."""
        if not isinstance(x, Tensor):
            raise ValueError(f"a BijectionTransform takes tensors; got {type(x).__name__}")
        shape, cut = self.forward_shape(x.shape, side), x.dim() - self._axes[side]
        batch, event = x.shape[:cut], x.shape[cut:]
        return x.reshape(batch.numel(), *(event or (1,))), batch, shape

    def _remembering(self, way: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
        """What torch's own cache or ``way`` gives; pairs of another state are forgotten."""
        if self._cache_size and self._stamp != self._state():
            self._cached_x_y = None, None
        found = way(given)
        self._stamp = self._state() if self._cache_size else None
        return found

    def _state(self) -> object:
        """What changes with weights, buffers, the x and y that are remembered, and modes."""
        pair: Any = self._cached_x_y
        tensors = [t for t in (*self.parameters(), *self.buffers(), *pair) if t is not None]
        if any(tensor.is_inference() for tensor in tensors):
            return object()  # writes to these are not counted: equal to nothing
        marks = [(id(t), t.data_ptr(), t._version, t.requires_grad) for t in tensors]
        return torch.is_grad_enabled(), marks, [module.training for module in self.modules()]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return state | {"_cached_x_y": (None, None)}  # graphs can be neither copied nor saved

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BijectionTransform) or self.bijection is not other.bijection:
            return False
        return (self.solver, self._axes) == (other.solver, other._axes)

    def __hash__(self) -> int:
        return hash((BijectionTransform, id(self.bijection)))

    def __repr__(self) -> str:
        shapes = self.bijection.event_shape, self.bijection.output_shape
        text = " → ".join(str(shape or "any shape") for shape in dict.fromkeys(shapes))
        return f"BijectionTransform({type(self.bijection).__name__}, {text})"


def _event_dim(bijection: Bijection, wanted: int | None) -> int:
    """The number of axes of a sample: of the bijection's, else as wanted, else of an image."""
    if wanted is not None and (not isinstance(wanted, int) or wanted < 0):
        raise ValueError(f"event_dim is a number of axes, 0 or more; got {wanted!r}")
    if (own := bijection.event_shape) is None:
        return 3 if wanted is None else wanted
    if wanted not in (None, len(own)):
        axes = f"a sample of this {type(bijection).__name__} has {len(own)} axes, {own}"
        raise ValueError(f"{axes}; got event_dim={wanted}. Leave event_dim out.")
    return len(own)


def _interval(bounds: tuple[float, float], event_dim: int) -> constraints.Constraint:
    low, high = bounds
    entry: constraints.Constraint = constraints.interval(low, high)
    if low == REALS[0]:
        entry = constraints.real if high == REALS[1] else constraints.less_than(high)
    elif high == REALS[1]:
        entry = constraints.greater_than(low)
    return constraints.independent(entry, event_dim)

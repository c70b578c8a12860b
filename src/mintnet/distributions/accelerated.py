"""Verified, faster samples of other libraries' autoregressive flows.

An autoregressive layer y_i = τ(x_i; h_i(x_<i)) is inverted one coordinate after the other, which
takes D evaluations of its network h. Jacobi's iteration,

    x ← τ⁻¹(y; h(x)),

sets all coordinates at once. After k passes the first k are exact, so that D passes are always
enough, and a trained layer needs far fewer. It stops for each sample when the residual is at the
rounding floor. The result is then run forward through the whole flow: the residual check.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform

from mintnet.bijections.chain import CHAIN_TOLERANCES
from mintnet.precision import true_float32
from mintnet.solvers import TOLERANCES, relative_residual
from mintnet.solvers.gradient import attach_gradient
from mintnet.solvers.solution import checked, own_scale

Map = Callable[[Tensor], Tensor]
COMPOSED = ("ComposedTransform", "LazyComposedTransform", "CompositeTransform")
REMEDY = "Try flow.double(); if that does not help, the flow overflows at this noise: draw other."


@dataclass(frozen=True)
class Layer:
    """An autoregressive layer y_i = τ(x_i; h_i(x_<i)) with the context of a batch."""

    # (x, context) ↦ τ and τ⁻¹ with the parameters h(x), both maps of (batch, D)
    scalar: Callable[[Tensor, Tensor | None], tuple[Map, Map]]
    context: Tensor | None  # (batch, …)
    passes: int  # after which Jacobi's iteration is exact
    weights: tuple[Tensor, ...]  # of h

    def __call__(self, y: Tensor) -> Tensor:
        """x with f(x) = y, (batch, D), differentiable in y, context and weights."""
        x = self.jacobi(y.detach())
        tracked = (y, *self.weights, *(() if self.context is None else (self.context,)))
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tracked):
            return x

        def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
            forward, _ = self.scalar(x, self.context)
            return forward(x), with_slope(forward, x)[1]

        name = "an autoregressive layer"
        return attach_gradient(x, y, evaluate, name, self.passes + 2, self.weights)

    @torch.no_grad()
    def jacobi(self, y: Tensor) -> Tensor:
        """x after as many passes as each sample needs, all of them if need be."""
        found, context, tolerance = torch.empty_like(y), self.context, TOLERANCES[y.dtype]
        # Without a context the first pass, from x = 0, is the same for all samples.
        x = torch.zeros_like(y[:1] if context is None else y)
        left, tiny = torch.arange(len(y), device=y.device), torch.finfo(y.dtype).tiny
        for _ in range(self.passes):
            forward, inverse = self.scalar(x, context)
            now = inverse(y)
            if y.dtype == torch.float64:  # τ⁻¹ may be a bisection that ends at 1e-6
                image, slope = with_slope(forward, now)
                now = now - (image - y) / slope
            # What is not finite would reach coordinates on which it has no influence, as 0 · ∞.
            now = now.nan_to_num(0.0, 0.0, 0.0)
            # Solved are entries with τ(x) = y to rounding, or τ⁻¹(y) = x where slopes are steep.
            pairs = (y, forward(x)), (now, x)
            gaps = ((a - b).abs() / a.abs().amax(1, keepdim=True).clamp(min=tiny) for a, b in pairs)
            done, x = torch.minimum(*gaps).amax(1) <= tolerance, now
            if bool(done.any()):
                found[left[done]] = x[done]
                x, y, left = x[~done], y[~done], left[~done]
                context = None if context is None else context[~done]
            if not len(left):
                break
        found[left] = x
        return found


def with_slope(function: Map, x: Tensor) -> tuple[Tensor, Tensor]:
    """τ(x) and τ'(x) of each entry, without gradients."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), slope


def invert(
    name: str, parts: Iterable[Map], forward: Callable[[Tensor], tuple[Tensor, Any]], z: Tensor
) -> tuple[Tensor, Any]:
    """x for z, (batch, D), by the inverses of all parts, verified, and what ``forward`` adds."""
    if z.dtype not in TOLERANCES:
        raise ValueError(f"samples are verified in float32 or float64; got {z.dtype}")
    with true_float32():
        x = z
        for inverse in parts:
            x = inverse(x)
        image, more = forward(x)
    scale = own_scale(z.detach())
    residual = relative_residual((image - z).detach(), scale)
    checked(name, x.detach(), residual, scale, CHAIN_TOLERANCES[z.dtype]).require(REMEDY)
    return x, more


class ZukoTransform(Transform):
    """A transform of zuko whose inverse is by Jacobi's iteration, and checked."""

    bijective = True
    domain = property(lambda self: self.transform.domain)
    codomain = property(lambda self: self.transform.codomain)

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def _call(self, x: Tensor) -> Tensor:
        return self.transform(x)  # type: ignore[no-any-return]

    def _inverse(self, y: Tensor) -> Tensor:
        shape, flat = y.shape, (y.shape[:-1].numel(), y.shape[-1])

        def apply(transform: Any, x: Tensor) -> Tensor:
            return transform(x.reshape(shape)).reshape(flat)  # type: ignore[no-any-return]

        parts = [_zuko_layer(t, shape) or partial(apply, t.inv) for t in _parts(self.transform)]
        forward = torch.no_grad()(lambda x: (apply(self.transform, x), None))
        return invert("a zuko flow", parts[::-1], forward, y.reshape(flat))[0].reshape(shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.transform.log_abs_det_jacobian(x, y)  # type: ignore[no-any-return]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.transform.call_and_ladj(x)  # type: ignore[no-any-return]


def _zuko_layer(transform: Any, shape: torch.Size) -> Layer | None:
    """The layer for samples (…, D) of that shape; None if it is not a masked autoregressive one."""
    if not _is(transform, "zuko", "AutoregressiveTransform"):
        return None
    meta = transform.meta  # zuko's partial(MaskedAutoregressiveTransform.meta, context)
    network, (context,) = meta.func.__self__, meta.args

    def scalar(x: Tensor, context: Tensor | None) -> tuple[Map, Map]:
        tau = meta.func(context, x)
        return tau, tau.inv

    if context is not None:
        context = context.expand(*shape[:-1], -1).flatten(0, -2)
    return Layer(scalar, context, transform.passes, tuple(network.parameters()))


class ZukoFlow(nn.Module):
    """A lazy flow of zuko, ``flow()`` or ``flow(c)``, whose distributions sample faster."""

    def __init__(self, flow: Any) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, c: Tensor | None = None) -> Any:
        _check_mode(self.flow)
        return _with_fast_transform(self.flow(c))

    def sample(self, shape: tuple[int, ...] = (), c: Tensor | None = None) -> Tensor:
        return self(c).sample(torch.Size(shape))  # type: ignore[no-any-return]

    def rsample(self, shape: tuple[int, ...] = (), c: Tensor | None = None) -> Tensor:
        return self(c).rsample(torch.Size(shape))  # type: ignore[no-any-return]

    def log_prob(self, x: Tensor, c: Tensor | None = None) -> Tensor:
        return self(c).log_prob(x)  # type: ignore[no-any-return]


def _with_fast_transform(distribution: Any) -> Any:
    fast = copy.copy(distribution)
    fast.transform = ZukoTransform(distribution.transform)
    return fast


class NflowsTransform(nn.Module):
    """A transform of nflows whose inverse is by Jacobi's iteration, and checked."""

    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, inputs: Tensor, context: Tensor | None = None) -> Any:
        return self.transform(inputs, context)

    def inverse(self, inputs: Tensor, context: Tensor | None = None) -> tuple[Tensor, Tensor]:
        _check_mode(self)
        parts = [_nflows_inverse(part, context, inputs.shape[1]) for part in _parts(self.transform)]
        forward = partial(self.transform, context=context)
        x, log_det = invert("an nflows flow", parts[::-1], forward, inputs)
        return x, -log_det


def _nflows_inverse(part: Any, context: Tensor | None, passes: int) -> Map:
    """The inverse of a part: by Jacobi's iteration if it is autoregressive, else its own."""
    if not _is(part, "nflows", "AutoregressiveTransform"):
        return lambda y: part.inverse(y, context)[0]

    def scalar(x: Tensor, context: Tensor | None) -> tuple[Map, Map]:
        h = part.autoregressive_net(x, context)
        ways = part._elementwise_forward, part._elementwise_inverse
        # A copy for each call: splines of nflows divide their parameters in place.
        tau, inverse = (lambda v, f=f: f(v, h.expand(len(v), -1).clone())[0] for f in ways)
        return tau, inverse

    return Layer(scalar, context, passes, tuple(part.parameters()))


def _parts(transform: Any) -> Iterator[Any]:
    """What a transform of either library applies one after the other."""
    if type(transform).__name__ in COMPOSED:
        for part in getattr(transform, "_transforms", None) or transform.transforms:
            yield from _parts(part)
    else:
        yield transform


def _is(thing: object, library: str, name: str) -> bool:
    """Whether it is of that class of that library, which need not be imported to ask."""
    kinds = type(thing).__mro__
    return any(k.__name__ == name and k.__module__.split(".")[0] == library for k in kinds)


def _check_mode(flow: nn.Module) -> None:
    """Raise if the flow is another function in each pass, as it may be while it is trained."""
    for module in flow.modules():
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        if module.training and (random or isinstance(module, nn.modules.batchnorm._BatchNorm)):
            name = type(module).__name__
            raise ValueError(f"the flow holds {name} in training mode; call flow.eval() first")


def accelerate(flow: Any) -> Any:
    """A flow of zuko or nflows with faster samples, each verified; its weights are shared.

    Autoregressive layers are inverted by Jacobi's iteration, other parts by their own inverse. A
    sample x of the noise z is returned if max |f(x) − z| ≤ 10⁻³ max |z| (10⁻⁹ in float64); else
    `InversionError` is raised. Gradients are implicit: they need no memory for passes.

    ``flow`` is a ``zuko.flows.Flow``, a distribution that it gave, or an ``nflows.flows.Flow``, and
    the result is used like it, with the same log-densities: of zuko ``fast()``, ``fast(c)``, or in
    short ``fast.sample((n,))``; of nflows ``fast.sample(n, context)``.

    Examples:
        >>> from nflows.flows import MaskedAutoregressiveFlow
        >>> flow = MaskedAutoregressiveFlow(8, 16, num_layers=2, num_blocks_per_layer=1)
        >>> fast = accelerate(flow)
        >>> x = fast.sample(5)
        >>> x.shape, bool((fast.log_prob(x) == flow.log_prob(x)).all())
        (torch.Size([5, 8]), True)
    """
    name = type(flow).__name__
    if _is(flow, "zuko", "Flow"):
        slow, whole = ("zuko", "MaskedAutoregressiveTransform"), flow.transform
    elif _is(flow, "zuko", "NormalizingFlow"):
        slow, whole = ("zuko", "AutoregressiveTransform"), flow.transform
    elif _is(flow, "nflows", "Flow"):
        slow, whole = ("nflows", "AutoregressiveTransform"), flow._transform
    else:
        got = f"{type(flow).__module__}.{name}"
        raise ValueError(f"accelerate takes a flow of zuko or nflows; got {got}")
    if not any(_is(part, *slow) for part in _parts(whole)):
        problem = "no autoregressive layer that is slow to sample from, nothing to accelerate"
        raise ValueError(f"{name} has {problem}; sample with the flow itself")
    if slow[0] == "zuko":
        return ZukoFlow(flow) if isinstance(flow, nn.Module) else _with_fast_transform(flow)
    fast = copy.copy(flow)
    fast._modules = {**flow._modules, "_transform": NflowsTransform(whole)}
    return fast

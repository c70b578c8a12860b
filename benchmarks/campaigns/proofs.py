"""Proofs of random functions of the calculus, against slopes in arithmetic of 300 bits.

Each case draws an expression with weights, constants and inputs of all magnitudes. Its bounds must
hold every exact value and slope, and its verdict their signs. Then something that it is made of
changes: the proof that a `Composed` has must be the one that a new proof gives, and there must be
none if a number became NaN or infinite.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import mpmath  # type: ignore[import-untyped]
import torch
from mpmath import mpf
from torch import Tensor

from mintnet import Composed
from mintnet import calculus as ca
from mintnet.calculus.expression import trace
from mintnet.calculus.value import mix

mpmath.mp.prec = 300
Numbers = list[Any]

NAMES: list[type[ca.Elementwise]] = [*ca.ACTIVATIONS.values(), ca.Arctan, ca.Exp]
FACTORS = (-2.0, -0.5, 0.25, 3.0, 0.0, 1.0, 1e-310, 5e-324, -1e-300, 1e-160, 1e12, -1e160, 1e300)
GAINS = (0.3, 1.0, 3.0, 1e-30, 1e-200, 1e-310, 1e12, 1e150)
PLACES = (0.0, 1e-310, 1e-160, 1e-3, 1.0, 3.0, 30.0, 300.0, 720.0, 744.5, 1e3, 1e8, 1e160, 1e300)


class TooLarge(Exception):
    """An exponential of a number with more than some millions of bits."""


@dataclass(frozen=True)
class Exact(ca.Quantity):
    """Exact values and slopes of the entries of one sample, in one list."""

    data: Numbers
    slope: Numbers
    place: tuple[int, ...]  # (height, width) of an image, () for a vector
    ordering: ca.Ordering | None = None

    def through(self, linear: ca.LinearMap) -> Exact:
        count = len(self.data)
        basis = torch.eye(count, dtype=torch.float64).reshape(count, -1, *self.place)
        weight = linear.apply(basis, linear.weight).flatten(1).T.tolist()
        own = mix(basis, linear.diagonal()).flatten(1).T.tolist()
        data = [mpmath.fdot(row, self.data) for row in weight]
        slope = [mpmath.fdot(row, self.slope) for row in own]
        image = Exact(data, slope, self.place)
        return image if linear.bias is None else image.shift(linear.bias)

    def apply(self, function: ca.Elementwise) -> Exact:
        if any(abs(v) > 1e7 for v in self.data) and not isinstance(function, ca.LeakyReLU):
            raise TooLarge
        pairs = [EXACT[type(function)](v) for v in self.data]
        slopes = [s * h for s, (_, h) in zip(self.slope, pairs, strict=True)]
        return Exact([value for value, _ in pairs], slopes, self.place)

    def conditioned(self, conditioner: ca.Conditioner) -> tuple[Exact, ...]:
        raise NotImplementedError

    def through_monotone(self, function: Any) -> Exact:
        raise NotImplementedError

    def add(self, other: Exact) -> Exact:
        data = [a + b for a, b in zip(self.data, other.data, strict=True)]
        slope = [a + b for a, b in zip(self.slope, other.slope, strict=True)]
        return Exact(data, slope, self.place)

    def multiply(self, other: Exact) -> Exact:
        parts = list(zip(self.data, self.slope, other.data, other.slope, strict=True))
        slope = [s * b + a * r for a, s, b, r in parts]
        return Exact([a * b for a, _, b, _ in parts], slope, self.place)

    def scale(self, factor: Tensor | float) -> Exact:
        factors = self._spread(factor)
        data = [a * f for a, f in zip(self.data, factors, strict=True)]
        slope = [s * f for s, f in zip(self.slope, factors, strict=True)]
        return Exact(data, slope, self.place)

    def shift(self, offset: Tensor | float) -> Exact:
        pairs = zip(self.data, self._spread(offset), strict=True)
        return Exact([a + f for a, f in pairs], self.slope, self.place)

    def _spread(self, constant: Tensor | float) -> Numbers:
        """A number, or one for each channel, for every entry."""
        numbers = torch.as_tensor(constant, dtype=torch.float64).detach().flatten().tolist()
        times = len(self.data) // len(numbers)
        return [mpf(number) for number in numbers for _ in range(times)]


def _sigmoid(v: Any) -> Any:
    return 1 / (1 + mpmath.exp(-v))


EXACT: dict[type[ca.Elementwise], Any] = {
    ca.ELU: lambda v: (v, mpf(1)) if v > 0 else (mpmath.expm1(v), mpmath.exp(v)),
    ca.Tanh: lambda v: (mpmath.tanh(v), 4 * _sigmoid(2 * v) * _sigmoid(-2 * v)),
    ca.Sigmoid: lambda v: (_sigmoid(v), _sigmoid(v) * _sigmoid(-v)),
    ca.Softplus: lambda v: (mpmath.log1p(mpmath.exp(-abs(v))) + max(v, 0), _sigmoid(v)),
    ca.LeakyReLU: lambda v: (v, mpf(1)) if v > 0 else (mpf(0.01) * v, mpf(0.01)),
    ca.Exp: lambda v: (mpmath.exp(v), mpmath.exp(v)),
    ca.Arctan: lambda v: (mpmath.atan(v), 1 / (1 + v * v)),
}


def draw(rng: random.Random) -> dict[str, Any]:
    shape = [rng.randint(1, 3)]
    if rng.random() < 0.25:
        shape = [rng.randint(1, 2) for _ in range(3)]
    return {"seed": rng.getrandbits(31), "shape": shape, "depth": rng.randint(1, 6)}


def expression(rng: random.Random, shape: list[int], depth: int) -> ca.Function:
    """A random function of vectors or images, in float64."""
    features, image = shape[0], len(shape) == 3
    upper, generator = rng.random() < 0.5, torch.Generator().manual_seed(rng.getrandbits(31))

    def linear(copies_in: int, copies_out: int) -> ca.Function:
        bias, strict = rng.random() < 0.5, rng.random() < 0.2
        layer: ca.Function = ca.MaskedLinear(
            features, copies_in, copies_out, upper, bias, strict
        ).double()
        if image:
            kernel = rng.choice((1, 3))
            layer = ca.MaskedConv2d(
                features, copies_in, copies_out, kernel, upper, bias, strict=strict
            ).double()
        for weight in layer.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data = rng.choice(GAINS) * noise
        return layer

    def build(depth: int, copies: int) -> ca.Function:
        if depth == 0:
            return ca.Identity() if copies == 1 else linear(1, copies)
        kind = rng.choice(
            ("activation", "linear", "sum", "difference", "product", "scale", "shift")
        )
        if kind == "activation":
            return rng.choice(NAMES)() @ build(depth - 1, copies)
        if kind == "linear":
            inner = rng.randint(1, 3)
            return linear(inner, copies) @ build(depth - 1, inner)
        constant: Tensor | float = rng.choice(FACTORS) * rng.choice((1.0, rng.gauss(0, 1)))
        if rng.random() < 0.3:
            each = torch.rand(features * copies, generator=generator).double()
            constant = constant * each.reshape(-1, *(1,) * (len(shape) - 1))
        if kind == "scale":
            return build(depth - 1, copies) * constant
        if kind == "shift":
            return build(depth - 1, copies) + constant
        first, second = build(depth - 1, copies), build(rng.randint(0, depth - 1), copies)
        if kind == "sum":
            return first + second
        return first - second if kind == "difference" else first * second

    function = build(depth, 1)
    if rng.random() < 0.5:  # many random functions are not monotone; these have a chance
        function = rng.choice((4.0, -4.0, 1e-305, 1e30)) * ca.Identity() + function
    return function


def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    rng = random.Random(case["seed"])
    shape = tuple(case["shape"])
    entries = math.prod(shape)
    function = expression(rng, case["shape"], case["depth"])
    proof, root = ca.certify(function, shape), trace(function)
    low, high = ([end] * entries for end in proof.image)
    bounds = [part.flatten().tolist() for part in (proof.low, proof.high, proof.sign)]
    counts = {"expressions": 1, "onto": int(proof.onto), "injective": int(proof.injective)}
    failures, points = [], 0
    for _ in range(3):
        place = [rng.choice(PLACES) * rng.uniform(-1, 1) for _ in range(entries)]
        try:
            found = root.on(Exact([mpf(v) for v in place], [mpf(1)] * entries, shape[1:]))
        except TooLarge:
            continue
        points += 1
        failures += outside(f"the value at {place}", found.data, low, high, [0] * entries)
        failures += outside(f"the slope at {place}", found.slope, *bounds)
    counts["points"] = points
    if rng.random() < 0.1:
        failures += changed(rng, function, shape)
        counts["changes"] = 1
    return counts, failures


def outside(what: str, numbers: Numbers, *bounds: list[Any]) -> list[str]:
    """The numbers that do not lie within their bounds or do not have their sign."""
    wrong = []
    for number, low, high, sign in zip(numbers, *bounds, strict=True):
        slack = mpf("1e-60") * abs(number)
        inside = mpf(low) - slack <= number <= mpf(high) + slack
        if not inside or (sign and sign * number <= 0):
            text = f"{mpmath.nstr(number, 20)} outside [{low!r}, {high!r}], sign {sign}"
            wrong.append(f"{what} is {text}")
    return wrong


def changed(rng: random.Random, function: ca.Function, shape: tuple[int, ...]) -> list[str]:
    """Change something after the proof; what is wrong with the proof that is used then."""
    bijection = Composed(function, shape, insist=True)
    before = bijection.proof()
    broken = rng.random() < 0.3
    number = rng.choice((float("nan"), float("inf"))) if broken else rng.choice(FACTORS)
    parts = [part for part in function.modules() if isinstance(part, ca.Scaled | ca.Shifted)]
    tensors = [*function.parameters(), *function.buffers()]
    tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not parts and not tensors:
        bijection.inner = number * function
    elif tensors and (not parts or rng.random() < 0.5):
        tensor = rng.choice(tensors)
        tensor.data.view(-1)[rng.randrange(tensor.numel())] = number
    else:
        part = rng.choice(parts)
        name = "factor" if isinstance(part, ca.Scaled) else "offset"
        held = getattr(part, name)
        setattr(part, name, torch.full_like(held, number) if isinstance(held, Tensor) else number)
    now, fresh = bijection.proof(), ca.certify(bijection.inner, shape)
    if broken and now.injective:
        return ["NaN or an infinite number, and it is still proved"]
    same = all(
        torch.equal(getattr(now, name), getattr(fresh, name))
        for name in ("verdict", "low", "high", "sign")
    )
    return [] if same else [f"the proof {before} outlived a change: {now}, and now it is {fresh}"]

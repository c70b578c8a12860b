"""Proofs of invertibility (Theorem 1) for anything that is composed from the calculus."""

from __future__ import annotations

import copyreg
import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import CodeType, FunctionType, MethodType, ModuleType
from types import MemberDescriptorType as Slot
from typing import Any

import torch
from torch import Tensor, nn

from mintnet.calculus.expression import Operation, trace
from mintnet.calculus.interval import INF, TINIEST
from mintnet.calculus.range import unbounded

PLAIN = str | int | float | complex | bytes | Enum | type
# Packages whose classes and functions are not looked into; objects of theirs are.
FOREIGN = {*sys.stdlib_module_names, "mintnet", "numpy", "torch"}
UNREAD = ("logging", "mintnet", "torch", "typing")  # nor global objects, but tensors and modules
# Attributes that matter where they are not empty.
HOOKS = frozenset(name for name, held in vars(nn.Module()).items() if "hooks" in name)


class Verdict(IntEnum):
    """What is proved of one coordinate, with the earlier ones fixed."""

    NOT_PROVED = 0
    INJECTIVE = 1
    ONTO = 2


class NotProvedError(ValueError):
    """A function is used as a bijection although its invertibility is not proved."""


@dataclass(frozen=True)
class Proof:
    """The result of `certify`: per coordinate a `Verdict` and bounds of the slope for all inputs.

    - *onto*: |slope| ≥ c > 0 everywhere, or the function is affine in the coordinate with a
      slope of strict sign; every z has exactly one preimage.
    - *injective*: the slope has a strict sign; z has one preimage if it has any.
    - *not proved*: the slope may vanish or change its sign, as far as the ranges tell.

    ``low`` and ``high`` bound the slope; ``sign`` is its strict sign, 0 where it is not proved.
    ``least`` and ``most`` are the ends of open intervals that hold all values. Shapes: one sample.
    """

    verdict: Tensor
    low: Tensor
    high: Tensor
    sign: Tensor
    blame: str | None
    least: Tensor
    most: Tensor
    made_of: Fingerprint = field(repr=False)

    @property
    def image(self) -> tuple[float, float]:
        """Bounds of the values of all coordinates."""
        return float(self.least.min()), float(self.most.max())

    def holds_for(self, function: Callable[[Any], Any]) -> bool:
        """Whether nothing that the function is made of has changed since it was proved."""
        return self.made_of.same(Fingerprint(*trace(function).nodes()))

    @property
    def onto(self) -> bool:
        """Every coordinate is onto: the function is a bijection of all reals."""
        return bool((self.verdict == Verdict.ONTO).all())

    @property
    def injective(self) -> bool:
        """Every coordinate is at least injective: Theorem 1 applies."""
        return bool((self.verdict >= Verdict.INJECTIVE).all())

    @property
    def message(self) -> str:
        if self.injective:
            word = "onto" if self.onto else "injective only (some targets have no preimage)"
            low, high = self.low.min().item(), self.high.max().item()
            return f"{word}: every slope lies in [{low:.4g}, {high:.4g}]"
        failed = int((self.verdict == Verdict.NOT_PROVED).sum())
        why = self.blame or "the slope is exactly 0, so the coordinate is lost"
        return f"not proved for {failed} of {self.verdict.numel()} coordinates: {why}"

    def __str__(self) -> str:
        return self.message

    def require_injective(self, name: str) -> None:
        """Raise `NotProvedError` with the explanation unless Theorem 1 applies."""
        if not self.injective:
            how = "for example by adding t·x with a large enough t or by a sign constraint"
            hint = f"Change that part, {how}, or pass insist=True if you know better."
            raise NotProvedError(f"{name} is not proved to be invertible ({self.message}). {hint}")


def certify(function: Callable[[Any], Any], shape: tuple[int, ...]) -> Proof:
    """Prove, from ranges of values and slopes over all inputs, what a function is.

    It is anything written with the calculus, traced twice; ``shape`` is that of one sample.

    Examples:
        >>> from mintnet.calculus import Identity, Softplus
        >>> print(certify(Identity() + Softplus(), (3,)))
        onto: every slope lies in [1, 2]
        >>> certify(Softplus(), (3,)).message
        'injective only (some targets have no preimage): every slope lies in [0, 1]'
        >>> certify(Identity() * Identity(), (3,)).injective
        False
    """
    sizes = shape if isinstance(shape, list | tuple) else (0,)
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise ValueError(f"expected the shape of one sample, (C, H, W) or (D,); got {shape}")
    shape = tuple(shape)
    with torch.no_grad(), _gradual_underflow():
        root = trace(function)
        made_of = Fingerprint(*root.nodes())
        made_of.tensors = [tensor.detach().clone() for tensor in made_of.tensors]
        for node in root.nodes():
            constant = node.operation in (Operation.SCALE, Operation.SHIFT)
            part = torch.as_tensor(node.part, dtype=torch.double) if constant else node.part
            if not Fingerprint(part).finite:
                fault = f"{'a constant' if constant else node.part} holds NaN or infinite numbers"
                none, bound = torch.zeros(shape, dtype=torch.int8), torch.full(shape, INF).double()
                return Proof(none, -bound, bound, none, fault, -bound, bound, made_of)
        if not made_of.same(Fingerprint(*trace(function).nodes())):
            remedy = "take random numbers and counters out of it, and dropout in training mode"
            raise ValueError(f"the function is another one each time, nothing is proved: {remedy}")
        image = root.on(unbounded(shape))
    slope = image.slope
    if (found := tuple(slope.low.shape[1:])) != shape:
        remedy = "End with one copy of each channel (copies_out=1)."
        raise ValueError(f"a bijection keeps the shape; {shape} became {found}. {remedy}")
    signed = slope.sign != 0
    onto = signed & ((slope.low > 0) | (slope.high < 0) | image.affine)
    verdict = (signed.to(torch.int8) + onto.to(torch.int8))[0]
    blame = None if bool(signed.all()) else image.blame
    values, bounds = (image.value.low[0], image.value.high[0]), (slope.low[0], slope.high[0])
    return Proof(verdict, *bounds, slope.sign[0], blame, *values, made_of)


@contextmanager
def _gradual_underflow() -> Iterator[None]:
    """Keep subnormal numbers, which rounding outwards needs, if the program flushes them to 0."""
    flushed = bool(torch.tensor(TINIEST, dtype=torch.float64) * 1.0 == 0)
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


class Fingerprint:
    """All tensors, and everything else, that some objects hold and read.

    They are searched through attributes, containers, closures, default arguments, methods, and the
    global data that functions name. Equal fingerprints belong to equal functions. Tensors are
    compared entry by entry, since writes to ``tensor.data`` leave no other trace.
    """

    def __init__(self, *parts: object) -> None:
        self.facts: list[object] = []
        self.tensors: list[Tensor] = []
        self._seen: dict[int, tuple[int, object]] = {}  # holds what it has seen: ids stay theirs
        self._add_all(parts)
        self._seen.clear()

    @property
    def finite(self) -> bool:
        narrow = (t.double() if t.is_floating_point() else t for t in self.tensors)  # float8 too
        return all(bool(tensor.isfinite().all()) for tensor in narrow)

    def same(self, other: Fingerprint) -> bool:
        if self.facts != other.facts or len(self.tensors) != len(other.tensors):
            return False
        pairs = zip(self.tensors, other.tensors, strict=True)
        return all((a.dtype, a.device) == (b.dtype, b.device) and a.equal(b) for a, b in pairs)

    def _add_all(self, values: Iterable[object]) -> None:
        for value in values:
            self._add(value)

    def _add(self, value: Any) -> None:
        if value is None or isinstance(value, PLAIN):
            self.facts.append(value)
        elif isinstance(value, Tensor) or hasattr(value, "__array__"):
            tensor = torch.as_tensor(value)
            if tensor.layout != torch.strided or tensor.is_meta:
                got = f"one of {tensor.layout} on {tensor.device}"
                raise ValueError(f"a proof needs dense tensors with numbers in them; got {got}")
            self.tensors.append(tensor)
        elif id(value) in self._seen:
            self.facts.append(("again", self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._open(value)

    def _open(self, value: Any) -> None:
        if isinstance(value, Mapping):
            self.facts.append(tuple(value))
            self._add_all(value.values())
        elif isinstance(value, list | tuple | set | frozenset | deque):
            self._add_all((len(value), *value))
        elif isinstance(value, MethodType):
            self._add_all((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            self._add_all((value.func, value.args, value.keywords))
        elif isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            names = sorted(_names(value.__code__))
            named = [value.__globals__[name] for name in names if name in value.__globals__]
            modules = [m for m in named if isinstance(m, ModuleType) and not _is_foreign(m)]
            named += [vars(m)[name] for m in modules for name in names if name in vars(m)]
            data = [thing for thing in named if _is_data(thing)]
            self.facts.append(value.__code__)
            self._add_all((value.__defaults__, value.__kwdefaults__, cells, data))
            self._add_all(_contents(kind) for kind in data if isinstance(kind, type))
        elif isinstance(value, weakref.ref | property | staticmethod | classmethod):
            held = value() if isinstance(value, weakref.ref) else getattr(value, "fget", value)
            self._add(getattr(held, "__func__", held))
        elif not hasattr(value, "__dict__"):
            self._add_all(_reduced(value))
        else:
            hooks = HOOKS if isinstance(value, nn.Module) else ()
            state = {name: held for name, held in vars(value).items() if name not in hooks or held}
            self._add_all((type(value), state))
            own = [kind for kind in type(value).__mro__ if not _is_foreign(kind)]
            slots = [n for kind in own for n, h in vars(kind).items() if isinstance(h, Slot)]
            self._add_all((*(getattr(value, n, None) for n in slots), *map(_contents, own)))


def _is_foreign(thing: type | FunctionType | ModuleType) -> bool:
    return getattr(thing, "__module__", thing.__name__).partition(".")[0] in FOREIGN


def _is_data(thing: object) -> bool:
    """Whether a global is data, or a function or class of the same program that may hold some."""
    if isinstance(thing, FunctionType | type):
        return not _is_foreign(thing)
    unread = type(thing).__module__.partition(".")[0] in UNREAD or isinstance(thing, ModuleType)
    return isinstance(thing, Tensor | nn.Module) or not unread


def _names(code: CodeType) -> set[str]:
    """The globals and attributes that a function names, and those inside it."""
    inner = (_names(held) for held in code.co_consts if isinstance(held, CodeType))
    return set(code.co_names).union(*inner)


def _contents(kind: type) -> dict[str, Any]:
    hidden = ("_abc_impl", "__dict__", "__weakref__")
    return {n: h for n, h in vars(kind).items() if n not in hidden and not isinstance(h, Slot)}


def _reduced(value: Any) -> list[Any]:
    """What an object without attributes is made of, as it would be copied; else ValueError."""
    reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(type(value))
    try:
        found = reduce(value) if reduce else value.__reduce_ex__(4)
    except (TypeError, RuntimeError) as error:
        what = f"a {type(value).__module__}.{type(value).__name__}, whose changes cannot be seen"
        words = f"holds {what}. Hold numbers, tensors, lists or modules instead."
        raise ValueError(f"nothing can be proved of a function that {words}") from error
    parts = [found] if isinstance(found, str) else found
    return [list(part) if isinstance(part, Iterator) else part for part in parts]

"""What a function of the calculus is made of: a proof holds as long as nothing of it changes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, Self

import torch
from torch import Tensor, nn

PLAIN = str | int | float | complex | bytes | Enum | type
FOREIGN = ("abc", "builtins", "collections", "enum", "functools", "mintnet", "torch", "typing")
"""Packages whose classes and functions are not looked into; objects of theirs are."""
HOOKS = frozenset(name for name, held in vars(nn.Module()).items() if "hooks" in name)
"""Attributes that matter where they are not empty."""


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
        """Whether no tensor holds NaN or infinite numbers."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors)

    def same(self, other: Fingerprint) -> bool:
        if self.facts != other.facts or len(self.tensors) != len(other.tensors):
            return False
        return all(
            a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
            for a, b in zip(self.tensors, other.tensors, strict=True)
        )

    def kept(self) -> Self:
        """The same, with copies of the tensors that nobody can change."""
        self.tensors = [tensor.detach().clone() for tensor in self.tensors]
        return self

    def _add_all(self, values: Iterable[object]) -> None:
        for value in values:
            self._add(value)

    def _add(self, value: Any) -> None:
        if value is None or isinstance(value, PLAIN):
            self.facts.append(value)
        elif isinstance(value, Tensor) or hasattr(value, "__array__"):
            self.tensors.append(torch.as_tensor(value))
        elif id(value) in self._seen:
            self.facts.append(("again", self._seen[id(value)][0]))
        else:
            self._seen[id(value)] = len(self._seen), value
            self._open(value)

    def _open(self, value: Any) -> None:
        if isinstance(value, Mapping):
            self.facts.append(tuple(value))
            self._add_all(value.values())
        elif isinstance(value, list | tuple | set | frozenset):
            self._add_all((len(value), *value))
        elif isinstance(value, MethodType):
            self._add_all((value.__self__, value.__func__))
        elif isinstance(value, functools.partial):
            self._add_all((value.func, value.args, value.keywords))
        elif isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            named = (value.__globals__.get(name) for name in value.__code__.co_names)
            data = [thing for thing in named if _is_data(thing)]
            self.facts.append(value.__code__)
            self._add_all((value.__defaults__, value.__kwdefaults__, cells, data))
        elif not hasattr(value, "__dict__"):
            self.facts.append(value)
        else:
            hooks = HOOKS if isinstance(value, nn.Module) else ()
            state = {name: held for name, held in vars(value).items() if name not in hooks or held}
            self._add_all((type(value), state))
            own = (kind for kind in type(value).__mro__ if not _is_foreign(kind))
            self._add_all(dict(vars(kind)) for kind in own)


def _is_foreign(thing: type | FunctionType) -> bool:
    return thing.__module__.partition(".")[0] in FOREIGN


def _is_data(thing: object) -> bool:
    """Whether a global is data, or a function of the same program that may read some."""
    if isinstance(thing, FunctionType):
        return not _is_foreign(thing)
    return isinstance(thing, Tensor | int | float | list | tuple | dict | set | nn.Module)

"""What a file may say, declared as types, and checked before anything is made of it.

A schema is a type hint: ``int``, ``float`` (finite), ``str``, ``bool``, ``None``, ``dict``,
``Literal[…]``, ``tuple[…]``, unions, ``Annotated[int, (low, high)]``, a dataclass (an object with
these fields and no others), or a dictionary of schemas (an object with these fields among others,
where those that may be None may be missing).
"""

import json
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mintnet.files import readable_size

LARGEST_JSON = 2**24  # bytes
_WORDS = {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}
_WORDS |= {dict: "an object", type(None): "nothing"}


def read_json(path: Path, schema: Any, refuse: type[ValueError] = ValueError) -> Any:
    """What a JSON file says, checked; else ``refuse``: one line with the file and the field."""
    try:
        if (size := readable_size(path)) > LARGEST_JSON:
            raise ValueError(f"expected at most {LARGEST_JSON:,} bytes; got {size:,}")
        return check(json.loads(path.read_bytes()), schema)
    except OSError as error:
        problem = f"cannot be read ({error.strerror or error})"
    except RecursionError:
        problem = "is nested too deeply"
    except ValueError as error:
        problem = " ".join(str(error).split())
    raise refuse(f"{path}: {problem}")


def check(value: Any, kind: Any, name: str = "") -> Any:
    """``value`` as ``kind``, with lists as tuples, or ValueError that names the field.

    Examples:
        >>> check({"size": [3, 4]}, dict), check([3, 4], tuple[int, ...])
        ({'size': [3, 4]}, (3, 4))
        >>> check(0.9, int, "seed")
        Traceback (most recent call last):
        ValueError: seed: expected a whole number; got 0.9
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        (low, high), found = args[1], check(value, args[0], name)
        if low <= found <= high:
            return found
    elif origin in (Union, UnionType):
        if isinstance(value, dict) and (objects := [each for each in args if _fields(each)]):
            return check(value, max(objects, key=lambda k: len(value.keys() & _fields(k))), name)
        for each in args:
            with suppress(ValueError):
                return check(value, each, name)
    elif origin is Literal:
        if any(value == each and type(value) is type(each) for each in args):
            return value
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = args[:1] * len(value) if args[-1] is ... else args
        if len(kinds) == len(value):
            pairs = enumerate(zip(value, kinds, strict=True))
            return tuple(check(one, each, f"{name}[{k}]") for k, (one, each) in pairs)
    elif _fields(kind) and isinstance(value, dict):
        return _object(value, kind, name)
    elif kind in (int, float):
        number: Any = Integral if kind is int else Real
        most = 2**64 if kind is int else 1e300
        if isinstance(value, number) and not isinstance(value, bool) and -most < value < most:
            return kind(value)
    elif not _fields(kind) and isinstance(value, origin or kind):
        return value
    shown = "nothing" if value is None else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise ValueError(f"{name}: expected {_words(kind)}; got {shown}".removeprefix(": "))


def _object(value: dict[str, Any], kind: Any, name: str) -> Any:
    """An object of a dataclass, or the dictionary with its fields checked."""
    kinds, place, exact = _fields(kind), f"{name}." if name else "", is_dataclass(kind)
    if exact and (unknown := sorted(map(str, value.keys() - kinds.keys()))):
        raise ValueError(f"{place}{unknown[0][:60]}: unknown; expected {', '.join(kinds)}")
    optional = [f.name for f in fields(kind) if f.default is not MISSING] if exact else []
    wanted = {n: k for n, k in kinds.items() if n in value or n not in optional}
    found = {n: check(value.get(n), k, place + n) for n, k in wanted.items()}
    if exact:
        try:
            return kind(**found)
        except ValueError as error:
            raise ValueError(f"{name}: {error}".removeprefix(": ")) from error
    return {**value, **{n: v for n, v in found.items() if n in value or v is not None}}


def _fields(kind: Any) -> dict[str, Any]:
    if isinstance(kind, dict):
        return kind
    return get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}


def _words(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_words(args[0])} from {args[1][0]:,} to {args[1][1]:,}"
    if origin is tuple:
        return f"a list, each {_words(args[0])}" if args[-1] is ... else f"a list of {len(args)}"
    if origin in (Union, UnionType):
        return " or ".join(map(_words, args))
    if origin is Literal:
        return " or ".join(map(str, args))
    return "an object" if isinstance(kind, dict) else _WORDS.get(origin or kind, "an object")

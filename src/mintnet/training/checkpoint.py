"""The state of a run on disk: weights, optimizer, averages and the step; nothing else is needed."""

from __future__ import annotations

import io
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.files import write_bytes
from mintnet.training.files import RunError

FORMAT = 1


@dataclass
class Checkpoint:
    """All that a run must remember; the rest follows from its seed and the step.

    Attributes:
        step: steps done.
        model: the weights in training.
        optimizer: its state.
        average: the averaged weights, if there are any.
        best: the least validation figure so far, or None.
        best_step: where it was reached.
        seconds: time spent in training so far.
        falls: how often the run went back to the averaged weights.
        fell_at: the step of the last time.
        left_out: how many of the last steps in a row were left out.
        usual: what the loss usually is, as `UsualLoss.state` has it.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "checkpoint.pt")
        ...     Checkpoint(step=3, model={"w": torch.ones(2)}).write(path)
        ...     Checkpoint.read(path).model
        {'w': tensor([1., 1.])}
    """

    step: int = 0
    model: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)
    best: float | None = None
    best_step: int = 0
    seconds: float = 0.0
    falls: int = 0
    fell_at: int = 0
    left_out: int = 0
    usual: list[float] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {name: getattr(self, name) for name in _NAMES}
        packed = io.BytesIO()
        torch.save({**content, "format": FORMAT, "digest": _digest(content)}, packed)
        write_bytes(path, packed.getvalue())

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """Read the file without running anything that is in it; raises `RunError` if damaged."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if content.pop("format") != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
            digest = content.pop("digest")
            complete = _NAMES - _LATER <= content.keys() <= _NAMES
            if not complete or _digest(content) != digest:
                raise ValueError("its contents do not match its checksum")
        except Exception as error:  # a damaged file may raise nearly anything
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            raise RunError(
                f"{path} is damaged ({reason}); put back a copy of it, or start a new run in "
                f"another folder from the weights in {path.parent / 'last'} (--run, --init)"
            ) from error
        return Checkpoint(**content)


_NAMES = asdict(Checkpoint()).keys()
_LATER = {"falls", "fell_at", "left_out", "usual"}  # not in older files


def _digest(value: Any) -> int:
    """A checksum of nested tensors and plain values: a zip file does not check what is in it."""
    if isinstance(value, Tensor):
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return zlib.crc32(data, zlib.crc32(str((value.dtype, tuple(value.shape))).encode()))
    if isinstance(value, dict):
        return zlib.crc32(str([(str(k), _digest(v)) for k, v in value.items()]).encode())
    if isinstance(value, list | tuple):
        return zlib.crc32(str([_digest(v) for v in value]).encode())
    return zlib.crc32(repr(value).encode())

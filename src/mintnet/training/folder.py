"""The run folder: what lies in it, how it is read, and errors that a person can act on."""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from mintnet.files import write_bytes

FORMAT = 2
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


class RunError(ValueError):
    """A run that cannot start or go on, in one line."""


class RunFolder:
    """A folder with one run.

    .. code-block:: text

        run.json           recipe, data, network, versions
        metrics.jsonl      one line for each report, validation, grid and step that was left out
        checkpoint.pt      the state to resume from
        last/, best/       saved models: the newest weights, and the best on held-out images
        samples/           grids of samples

    Examples:
        >>> RunFolder("runs/digits").checkpoint.as_posix()
        'runs/digits/checkpoint.pt'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path = Path(path).expanduser()
        self.last, self.best, self.samples = path / "last", path / "best", path / "samples"
        self.checkpoint, self.metrics_file = path / "checkpoint.pt", path / "metrics.jsonl"
        self.run_json = path / "run.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep the folder for this process; `RunError` says who else has it. A kill frees it.

        The folder is made for that, and removed again where nothing has come into it.
        """
        if os.name != "posix":  # there is no flock
            yield
            return
        import fcntl

        made = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.is_empty()  # refuses a file
        lock = self.path / ".lock"
        while True:
            self.path.mkdir(parents=True, exist_ok=True)
            file = lock.open("a+")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                who = file.read() or "another process"
                raise RunError(
                    f"{self.path} is in use by {who}; wait until that has ended, or name another "
                    f"folder with --run"
                ) from None
            if lock.exists() and os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                break
            file.close()  # of a process that has just ended
        try:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {platform.node()}")
            file.flush()
            yield
        finally:
            lock.unlink(missing_ok=True)
            file.close()
            with suppress(OSError):
                for path in made:
                    path.rmdir()

    def is_empty(self) -> bool:
        """Whether there is nothing in it but hidden files, or no folder at all."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; --run names a folder")
        return not self.path.exists() or all(f.name[0] == "." for f in self.path.iterdir())

    def is_finished(self) -> bool:
        """Whether the run in it has done all its steps."""
        state = self.read_checkpoint()
        return state is not None and bool(state["step"] >= self.read()["steps"])

    def require_empty(self) -> None:
        """Raise unless a new run may begin here."""
        if not self.is_empty():
            run = self.run_json.is_file()
            words = "holds a run; go on with it with --resume, or" if run else "is not empty;"
            raise RunError(f"{self.path} {words} name another folder with --run")

    def read(self) -> dict[str, Any]:
        """What run.json says: recipe, data, model, steps."""
        if not self.run_json.is_file():
            raise RunError(
                f"{self.path} holds no run: there is no run.json in it; name another folder "
                f"with --run"
            )
        try:
            content = json.loads(self.run_json.read_text())
            if content["format"] != FORMAT:
                raise ValueError(f"not of format {FORMAT}: it is of another version of mintnet")
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise self.damaged(error) from error
        return dict(content)

    def damaged(self, error: Exception) -> RunError:
        """What to say about a run.json that cannot be understood."""
        return RunError(f"{self.run_json} is damaged ({error}); name another folder with --run")

    def write(self, content: Mapping[str, Any]) -> None:
        """Write run.json."""
        versions = {name: version(name) for name in ("mintnet", "torch", "lightning-fabric")}
        versions["python"] = platform.python_version()
        text = json.dumps({"format": FORMAT, **content, "versions": versions}, indent=1)
        write_bytes(self.run_json, f"{text}\n".encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that a kill cut short is left out.

        Each has ``kind`` (``train``, ``validation``, ``left out`` or ``samples``), ``step``,
        ``epoch`` and figures.
        """
        rows = []
        lines = self.metrics_file.read_text().splitlines() if self.metrics_file.exists() else []
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
        return rows

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to metrics.jsonl."""
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rewind_metrics(self, step: int) -> None:
        """Remove what a killed run wrote after its last checkpoint, since it comes again."""
        if self.metrics_file.exists():
            rows = [json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
            write_bytes(self.metrics_file, "".join(rows).encode())

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the state to resume from, whole or not at all."""
        packed = io.BytesIO()
        torch.save({"state": state, "format": FORMAT}, packed)
        write_bytes(self.checkpoint, packed.getvalue())

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The state to resume from, None before the first checkpoint; runs no code of the file."""
        if not self.checkpoint.exists():
            return None
        try:
            with zipfile.ZipFile(self.checkpoint) as file:
                if file.testzip() is not None:  # torch does not look at the checksums in it
                    raise ValueError("its contents do not match their checksums")
            content = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise ValueError(f"not of format {FORMAT}")
        except Exception as error:  # a damaged file may raise nearly anything
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            raise RunError(
                f"{self.checkpoint} is damaged ({reason}); put back a copy of it, or start a new "
                f"run in another folder from the weights in {self.last} (--run, --init)"
            ) from error
        return dict(content["state"])


@contextmanager
def disk_errors(run: Path) -> Iterator[None]:
    """Turn errors of the disk while a run writes into one line that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        if isinstance(error, OSError) and code not in _DISK:
            raise
        reason = os.strerror(code) if code is not None else " ".join(str(error).split())
        raise RunError(
            f"{run} cannot be written ({reason}); what was saved before is intact: make room or "
            f"mend it, then go on with --resume"
        ) from error

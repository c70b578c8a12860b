"""The run folder: what lies in it, how it is read, and errors that a person can act on."""

import errno
import io
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from safetensors import SafetensorError

from mintnet.data.dataset import reason
from mintnet.files import is_there, readable_size, write_bytes
from mintnet.models.storage import check_tensor, load_torch
from mintnet.schema import check, read_json

FORMAT = 2
OTHER = "name another folder with --run"
Steps, Seconds = Annotated[int, (0, 2**62)], Annotated[float, (0, 1e12)]
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM}


class RunError(ValueError):
    """A run that cannot start or go on, in one line."""


RUN: dict[str, Any] = {"format": Literal[2], "recipe": dict, "data": dict, "steps": Steps}
STATE: dict[str, Any] = {"step": Steps, "best": float | None, "best_step": Steps}
STATE |= {"left_out": Steps | None, "seen": Steps | None, "since": float | None, "seconds": Seconds}
STATE |= {"sums": dict | None, "model": dict, "averaged": dict | None, "optimizer": dict}
METRICS: dict[str, Any] = {"kind": str, "step": Steps}
"""What run.json, a checkpoint and each line of metrics.jsonl say."""


class RunFolder:
    """A folder with one run.

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
        """Keep the folder for this process; `RunError` says who else has it. A kill frees it."""
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
                raise RunError(f"{self.path} is in use by {who}; wait for it, or {OTHER}") from None
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
                for path in made:  # where nothing has come into it
                    path.rmdir()

    def is_empty(self) -> bool:
        """Whether there is nothing in it but hidden files, or no folder at all."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; --run names a folder")
        return not self.path.exists() or all(f.name[0] == "." for f in self.path.iterdir())

    def is_finished(self) -> bool:
        state = self.read_checkpoint()
        return state is not None and bool(state["step"] >= self.read()["steps"])

    def read(self) -> dict[str, Any]:
        if not is_there(self.run_json):
            raise RunError(f"{self.path} holds no run: there is no run.json in it; {OTHER}")
        return read_json(self.run_json, RUN, RunError)  # type: ignore[no-any-return]

    def write(self, **content: Any) -> None:
        versions = {name: version(name) for name in ("mintnet", "torch", "lightning-fabric")}
        versions["python"] = platform.python_version()
        text = json.dumps({"format": FORMAT, **content, "versions": versions}, indent=1)
        write_bytes(self.run_json, f"{text}\n".encode())

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last line that a kill cut short is left out.

        Each has ``step``, ``epoch``, figures, and a ``kind``: train, validation, left out, samples.
        """
        rows: list[dict[str, Any]] = []
        if not is_there(self.metrics_file):
            return rows
        readable_size(self.metrics_file)  # refuses pipes and devices
        *lines, _ = self.metrics_file.read_text(errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            try:
                rows.append(check(json.loads(line), METRICS))
            except (ValueError, RecursionError) as error:
                problem = f"{self.metrics_file}: line {number}: {reason(error)}"
                raise RunError(f"{problem}; put back a copy, or take the file away") from error
        return rows

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        with self.metrics_file.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rewind_metrics(self, step: int) -> None:
        """Remove what a killed run wrote after its last checkpoint, since it comes again."""
        if self.metrics_file.exists():
            rows = [json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
            write_bytes(self.metrics_file, "".join(rows).encode())

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        packed = io.BytesIO()
        torch.save({"state": state, "format": FORMAT}, packed)
        write_bytes(self.checkpoint, packed.getvalue())

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The state to resume from, None before the first checkpoint; runs no code of the file."""
        if not is_there(self.checkpoint):
            return None
        try:
            content = check(load_torch(self.checkpoint), {"format": Literal[2], "state": STATE})
            state: dict[str, Any] = content["state"]
            for name, value in {**state["model"], **state.get("averaged", {})}.items():
                if getattr(value, "dtype", None) != torch.int64:  # a count of batches
                    check_tensor(value, getattr(value, "ndim", 0), name)
        except Exception as error:  # a damaged file may raise nearly anything
            mend = f"put back a copy, or begin anew from {self.last} (--run, --init)"
            raise RunError(f"{self.checkpoint} is damaged ({reason(error)}); {mend}") from error
        return state


@contextmanager
def explained_errors(run: Path) -> Iterator[None]:
    """Errors of the disk, or of other processes that are gone, in one line that says what to do."""
    intact = "what was saved before is intact"
    try:
        yield
    except (OSError, SafetensorError) as error:
        code = getattr(error, "errno", None)
        if isinstance(error, OSError) and code not in _DISK:
            raise
        why = reason(error) if code is None else os.strerror(code)
        mend = "make room or mend it, then go on with --resume"
        raise RunError(f"{run} cannot be written ({why}); {intact}: {mend}") from error
    except RuntimeError as error:  # of a collective
        if not isinstance(error, torch.distributed.DistBackendError) and "gloo" not in str(error):
            raise
        raise RunError(f"another process of this run has ended; {intact}: use --resume") from error

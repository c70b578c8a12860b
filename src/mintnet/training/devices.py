"""Where a run takes place: devices, machines, precision and the fast path. Fabric does the work."""

import atexit
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._triton import has_triton

from mintnet.data.dataset import reason
from mintnet.models.fast import why_not_fast
from mintnet.training.folder import RunError
from mintnet.training.step import DensityTask, FastPath, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SMALL = 256  # dimensions of an image up to which one CPU thread is best


@dataclass(frozen=True)
class Devices:
    """How many devices, of which kind, on how many machines; see the fields of `Recipe`."""

    devices: str | None = None
    nodes: int | None = None
    accelerator: str = "auto"

    @property
    def cuda(self) -> bool:
        return self.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()

    @property
    def bf16(self) -> bool:
        return self.cuda and torch.cuda.get_device_capability() >= (8, 0)

    def resolved(self) -> tuple[int | str, int]:
        """Devices on each machine, and machines: torchrun's or SLURM's where those started us."""
        chosen, nodes = "1" if self.devices is None else self.devices, self.nodes or 1
        if (chosen, nodes) == ("1", 1):
            known = os.environ.get
            chosen = known("LOCAL_WORLD_SIZE") or known("SLURM_NTASKS_PER_NODE") or "1"
            if "LOCAL_WORLD_SIZE" in os.environ and "WORLD_SIZE" in os.environ:
                nodes = int(os.environ["WORLD_SIZE"]) // int(chosen)
            elif "SLURM_NTASKS" in os.environ:
                nodes = int(known("SLURM_NNODES", "1"))
        if chosen == "auto":
            return chosen, nodes
        if not chosen.isdecimal() or int(chosen) < 1 or nodes < 1:
            raise ValueError(f"devices is 1, 2, … or auto, nodes 1, 2, …; got {chosen} and {nodes}")
        return int(chosen), nodes


def is_first_process() -> bool:
    """Whether this is the first of all processes, by the environment: it prints and writes."""
    known = os.environ.get
    if (rank := known("RANK")) is not None:  # torchrun
        return int(rank) == 0
    if (rank := known("LOCAL_RANK")) is not None:  # Fabric's own launcher
        return int(rank) == 0 and int(known("NODE_RANK", known("GROUP_RANK", "0"))) == 0
    if "SLURM_NTASKS" in os.environ and known("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return int(known("SLURM_PROCID", "0")) == 0
    return int(known("NODE_RANK", "0")) == 0  # Fabric starts the others of this machine later


def make_fabric(devices: Devices, mixed: bool = False) -> "Fabric":
    """Fabric on these devices, its processes launched; ``mixed`` for bf16 by autocast."""
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    count, nodes = devices.resolved()
    many = (count, nodes) != (1, 1)
    if many:
        atexit.register(_leave_group)
    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)  # tips that are not ours
    try:
        how: Any = {"strategy": "ddp" if many else "auto"}
        how["precision"] = "bf16-mixed" if mixed else "32-true"
        fabric = Fabric(accelerator=devices.accelerator, devices=count, num_nodes=nodes, **how)
    except (MisconfigurationException, ValueError, RuntimeError) as error:
        raise RunError(f"these devices cannot be had: {reason(error)}") from error
    fabric.launch()
    return fabric


def chosen_precision(precision: str, devices: Devices) -> str:
    """What ``auto`` means here: bf16 where matrix units have it, else float32."""
    if precision != "auto":
        return precision
    return "bf16" if devices.bf16 else "float32"


def why_not_compiled() -> str:
    """What keeps steps from being compiled on this machine; empty where nothing does."""
    if not has_triton():
        return "not compiled: Triton is not installed, or this GPU is too old for it"
    compiler = any(map(shutil.which, (os.environ.get("CC") or "gcc", "gcc", "clang")))
    return "" if compiler else "not compiled: there is no C compiler, which Triton needs"


def fast_path(
    task: Task, precision: str, devices: Devices, plain: bool = False
) -> tuple[FastPath | None, str]:
    """The fast path of a task, or None; and a line to print. On a CPU it is for bf16 alone."""
    half, no = precision == "bf16", "no fast path: "
    if not (devices.cuda or half):
        return None, ""
    if plain:
        return None, no + "as asked"
    if precision == "float64":
        return None, no + "it has no float64"
    if half and devices.cuda and not devices.bf16:
        return None, no + "this GPU has no bf16"
    if isinstance(task, DensityTask) and (why := why_not_fast(task.model.net)):
        return None, no + why
    if not devices.cuda:
        return FastPath(dtype=torch.bfloat16, compiled=False), "fast path in bf16"
    slow = why_not_compiled()
    path = FastPath(dtype=torch.bfloat16 if half else torch.float32, compiled=not slow)
    return path, f"fast path in {precision}, {slow or 'compiling takes a minute'}"


@contextmanager
def computing(tf32: bool, threads: int | None = None) -> Iterator[None]:
    """Products of float32 numbers in TF32 or in true float32, and so many CPU threads, inside."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before, flags = torch.get_num_threads(), (matmul.allow_tf32, cudnn.allow_tf32)
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = flags
        torch.set_num_threads(before)


def _leave_group() -> None:
    """Threads of gloo that outlive the interpreter abort it now and then."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

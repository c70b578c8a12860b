"""Where a run takes place: devices, machines, precision. Lightning does the work."""

from __future__ import annotations

import atexit
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mintnet.training.files import RunError

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

SMALL = 256
"""Dimensions of an image up to which one thread is best."""

ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")


@dataclass(frozen=True)
class Devices:
    """How many devices, of which kind, on how many machines.

    Attributes:
        devices: a number or ``auto`` for all there are; None takes what torchrun or SLURM
            started, else one.
        nodes: machines; None takes what torchrun or SLURM started, else one.
        accelerator: auto, cpu, cuda, gpu or mps.
        threads: of each process, on CPUs; None leaves them as they are, or takes one for images
            so small that threads only wait for each other.
        fast: take fast kernels and recorded steps where there are any.
        compile: on a CPU, compile the layers of density models: minutes at the start, and about
            a tenth faster from then on.

    Examples:
        >>> Devices(devices="2", accelerator="cpu").resolved()
        (2, 1)
    """

    devices: str | None = None
    nodes: int | None = None
    accelerator: str = "auto"
    threads: int | None = None
    fast: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        if self.compile and not self.fast:
            raise ValueError("--plain and --compile contradict each other; give one of them")

    @property
    def cuda(self) -> bool:
        """Whether the run will be on GPUs of this kind."""
        return self.accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()

    def resolved(self) -> tuple[int | str, int]:
        """Devices on each machine, and machines."""
        if self.accelerator not in ACCELERATORS:
            raise ValueError(
                f"unknown accelerator {self.accelerator!r}; choose one of {', '.join(ACCELERATORS)}"
            )
        here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or "1"
        world = os.environ.get("WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else None
        nodes = self.nodes
        if nodes is None:
            slurm = os.environ.get("SLURM_NNODES", "1") if "SLURM_NTASKS" in os.environ else "1"
            nodes = int(world) // int(here) if world else int(slurm)
        chosen = here if self.devices is None else self.devices
        if chosen == "auto":
            return chosen, nodes
        if not chosen.isdecimal() or int(chosen) < 1 or nodes < 1:
            raise ValueError(
                f"devices is a positive number or auto, and nodes a positive number; got {chosen} "
                f"and {nodes}"
            )
        return int(chosen), nodes


def is_first_process() -> bool:
    """Whether this is the first of all processes, by what its launcher put in the environment.

    The answer is wanted before anything is set up: the first process alone judges and writes.

    Examples:
        >>> is_first_process()
        True
    """
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

    known = os.environ.get
    if (rank := known("RANK")) is not None:  # torchrun
        return int(rank) == 0
    if (rank := known("LOCAL_RANK")) is not None:  # Lightning's own launcher
        return int(rank) == 0 and int(known("NODE_RANK", known("GROUP_RANK", "0"))) == 0
    return not SLURMEnvironment.detect() or int(known("SLURM_PROCID", "0")) == 0


def make_trainer(devices: Devices, precision: str = "float32", **options: Any) -> Trainer:
    """A Lightning trainer without what Lightning would print, save and draw by itself."""
    from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
    from lightning.fabric.utilities.exceptions import MisconfigurationException
    from lightning.pytorch import Trainer
    from lightning.pytorch.strategies import DDPStrategy

    count, nodes = devices.resolved()
    many = count == "auto" or count > 1 or nodes > 1  # type: ignore[operator]
    if many:
        atexit.register(_leave_group)
    plugins: list[Any] = []
    if SLURMEnvironment.detect():  # resuming is ours: --resume in the job's script
        plugins.append(SLURMEnvironment(auto_requeue=False))
    try:
        return Trainer(
            accelerator=devices.accelerator,
            devices=count,
            num_nodes=nodes,
            strategy=DDPStrategy(broadcast_buffers=False) if many else "auto",
            precision="bf16-mixed" if precision == "bf16" else "32-true",
            plugins=plugins,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
            **options,
        )
    except (MisconfigurationException, ValueError) as error:
        reason = " ".join(str(error).split())
        raise RunError(f"these devices cannot be had: {reason}") from error


@contextmanager
def cpu_threads(threads: int | None, dimensions: int) -> Iterator[None]:
    """That many threads within this block; if None, one for images of few dimensions.

    Examples:
        >>> with cpu_threads(None, dimensions=64):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    chosen = (1 if dimensions <= SMALL else before) if threads is None else threads
    if chosen < 1:
        raise ValueError(f"threads must be at least 1; got {chosen}")
    torch.set_num_threads(chosen)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's notes and tips, which are not about what users of mintnet do."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning.*")
            warnings.filterwarnings("ignore", message=".*isinstance\\(treespec, LeafSpec\\).*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def float32_math(tf32: bool) -> Iterator[None]:
    """Products of float32 numbers in TF32 or in true float32, on devices that have both.

    Examples:
        >>> with float32_math(tf32=False):
        ...     torch.backends.cudnn.allow_tf32
        False
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _leave_group() -> None:
    """Threads of gloo that outlive the interpreter abort it now and then; Lightning leaves them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()

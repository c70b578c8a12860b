"""`mintnet`: picks the command, runs it, and turns users' mistakes into one line."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Annotated, Any, Union

import tyro

from mintnet.cli.command import Command, FlawedResult, origin
from mintnet.cli.output import check_output, write_json

COMMANDS = {
    "train": "mintnet.cli.train:Train",
    "evaluate": "mintnet.cli.evaluate:Evaluate",
    "sample": "mintnet.cli.sample:Sample",
    "reconstruct": "mintnet.cli.reconstruct:Reconstruct",
    "interpolate": "mintnet.cli.interpolate:Interpolate",
    "verify": "mintnet.cli.verify:Verify",
    "tune-step": "mintnet.cli.tune_step:TuneStep",
    "report": "mintnet.cli.report:Report",
    "explain": "mintnet.cli.explain:Explain",
    "info": "mintnet.cli.info:Info",
    "export": "mintnet.cli.export:Export",
    "import-original": "mintnet.cli.import_original:ImportOriginal",
    "data get": "mintnet.cli.data:Get",
    "data verify": "mintnet.cli.data:VerifyFiles",
    "bench train": "mintnet.cli.bench_train:BenchTrain",
    "bench sample": "mintnet.cli.bench_sample:BenchSample",
    "bench invert": "mintnet.cli.bench:Invert",
    "bench growth": "mintnet.cli.bench:Growth",
    "bench properties": "mintnet.cli.bench:Properties",
    "demo": "mintnet.cli.demo:Demo",
}
"""Where each command is; "group name" makes a command of a group. A new one is a line here."""

NO_MEMORY = "can't allocate memory"
"""What torch says on a CPU, in an error that has no name of its own."""

GROUPS = {
    "data": "Get data sets, and check the files that are there.",
    "bench": "Measure how fast things are.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exits with 1 for a mistake, 2 for a wrong call, 130 for Ctrl-C.

    With MINTNET_DEBUG=1 in the environment a mistake shows its traceback too.

    Examples:
        >>> main(["info", "digits"])
        digits...
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(f"mintnet {version('mintnet')}")
        return
    try:
        command = parse(arguments or ["--help"])
        command.typed = shlex.join(["mintnet", *arguments])
        if command.json is not None:
            check_output(command.json, option="--json")
        source = origin(command) if command.json is not None else {}
        flaw = None
        try:
            figures = command.run()
        except FlawedResult as found:
            flaw, figures = found, found.figures
        if command.json is not None and _is_first_process():
            write_json(command.json, {**source, **figures})
        sys.stdout.flush()
        if flaw is not None:
            raise flaw
    except BrokenPipeError:
        _close_quietly()
        raise SystemExit(1) from None
    except KeyboardInterrupt as stop:
        _fail(str(stop) or "interrupted", 130)
    except Exception as error:
        if not _is_mistake(error) or os.environ.get("MINTNET_DEBUG") == "1":
            raise
        _fail(_one_line(error), 1)


def parse(arguments: Sequence[str]) -> Command:
    """The command that the arguments name, with its options filled in.

    Examples:
        >>> parse(["sample", "mnist", "-n", "9"]).count
        9
    """
    kinds: Any = Union[tuple(_kinds())]  # noqa: UP007 - built when it runs
    options = (tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff)
    words = "Invertible networks: exact likelihoods, certified inverses. See also --version."
    found: Command = tyro.cli(
        kinds, prog="mintnet", description=words, args=list(arguments), config=options
    )
    return found


def _kinds() -> list[Any]:
    """The commands as types, those of a group inside one."""
    single: list[Any] = []
    grouped: dict[str, list[Any]] = {}
    annotated: Any = Annotated  # with types that are known only when it runs
    union: Any = Union
    for name, place in COMMANDS.items():
        module, _, kind = place.partition(":")
        if find_spec(module) is None:  # a command that this installation does not have
            continue
        found = getattr(import_module(module), kind)
        group, _, inner = name.rpartition(" ")
        words = (found.__doc__ or "").partition("\n\n")[0]
        entry = annotated[found, tyro.conf.subcommand(inner, description=words)]
        (grouped.setdefault(group, []) if group else single).append(entry)
    groups = [
        annotated[union[tuple(kinds)], tyro.conf.subcommand(name, description=GROUPS[name])]
        for name, kinds in grouped.items()
    ]
    return [*single, *groups]


def _is_mistake(error: Exception) -> bool:
    """Whether it is something that a user can mend, and not a fault of the program."""
    from safetensors import SafetensorError

    from mintnet.solvers import InversionError

    if isinstance(error, ValueError | InversionError | OSError | MemoryError | SafetensorError):
        return True
    return type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error)  # torch's


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if NO_MEMORY in str(error):
        return "there is not enough memory for that; ask for fewer or smaller images at a time"
    return " ".join(str(error).split()) or type(error).__name__


def _fail(reason: str, code: int) -> None:
    print(f"mintnet: error: {reason}", file=sys.stderr)
    raise SystemExit(code) from None


def _is_first_process() -> bool:
    """Whether this is the first of the processes that torchrun, Lightning or SLURM started."""
    ranks = (os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return next((rank for rank in ranks if rank is not None), "0") == "0"


def _close_quietly() -> None:
    """Nobody reads the output any more; keep Python from complaining about it at its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())

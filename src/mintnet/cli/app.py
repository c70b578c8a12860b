"""`mintnet`: picks the command, runs it, and turns users' mistakes into one line."""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import is_dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import tyro

from mintnet.cli.command import Command, FlawedResult, origin
from mintnet.cli.output import console, output_place, print_commands, to_json
from mintnet.files import write_bytes
from mintnet.schema import read_json

COMMANDS = {
    "train": "mintnet.cli.train:Train",
    "evaluate": "mintnet.cli.evaluate:Evaluate",
    "sample": "mintnet.cli.images:Sample",
    "reconstruct": "mintnet.cli.images:Reconstruct",
    "interpolate": "mintnet.cli.images:Interpolate",
    "verify": "mintnet.cli.invert:Verify",
    "tune-step": "mintnet.cli.invert:TuneStep",
    "report": "mintnet.cli.report:Report",
    "predict": "mintnet.cli.predict:Predict",
    "explain": "mintnet.cli.explain:Explain",
    "score": "mintnet.cli.score:Score",
    "restore": "mintnet.cli.restore:Restore",
    "export": "mintnet.cli.export:Export",
    "info": "mintnet.cli.info:Info",
    "import-original": "mintnet.cli.info:ImportOriginal",
    "data get": "mintnet.cli.info:Get",
    "bench train": "mintnet.cli.bench:Train",
    "bench sample": "mintnet.cli.bench:Sample",
    "bench invert": "mintnet.cli.bench:Invert",
    "bench properties": "mintnet.cli.bench:Properties",
    "bench families": "mintnet.cli.bench:Families",
    "bench accelerate": "mintnet.cli.bench:Accelerate",
    "bench score": "mintnet.cli.bench:Score",
    "bench restore": "mintnet.cli.bench:Restore",
    "studio": "mintnet.studio.command:Studio",
    "demo": "mintnet.cli.demo:Demo",
    "doctor": "mintnet.cli.doctor:Doctor",
}
"""Where each command is; a new one is a line here."""

TABLES = {
    name: f"mintnet.cli.tables:{name.title()}"
    for name in ("train", "sample", "score", "evaluate", "report")
}
"""The same commands about a CSV file, or about a model of one."""

ABOUT = "Invertible networks: exact likelihoods, verified inverses. See also --version."
FIRST_STEPS = {
    "mintnet demo": "everything once, small: three minutes",
    "mintnet sample mnist -n 16": "new digits from a model that comes with the package",
    "mintnet train folder --data PICTURES": "a model of your own pictures",
    "mintnet doctor": "what this machine has, and what is missing",
    "mintnet --help": "all commands; mintnet COMMAND --help for one of them",
}
EXTRAS = {
    **dict.fromkeys(("tyro", "rich", "matplotlib", "PIL", "pooch", "jinja2"), "cli"),
    "lightning_fabric": "cli",
    "gradio": "studio",
    "tensorboard": "tensorboard",
    "torchdiffeq": "ffjord",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
    "huggingface_hub": "hub",
    "sklearn": "sklearn",
}
NO_MEMORY = "can't allocate memory"  # torch on a CPU, in an error that has no name of its own


def run(arguments: list[str]) -> None:
    """Run the command that the arguments name; MINTNET_DEBUG=1 shows tracebacks of mistakes."""
    if arguments == ["--version"]:
        print(f"mintnet {version('mintnet')}")
        return
    if not arguments:
        print_commands(console(), FIRST_STEPS)
        return
    command = None
    try:
        command = parse(arguments)
        command.typed = shlex.join(["mintnet", *arguments])
        _run(command)
    except BrokenPipeError:
        # Nobody reads the output any more; keep Python from complaining about it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except KeyboardInterrupt as stop:
        print(f"mintnet: {str(stop) or 'interrupted'}", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if not _is_mistake(error) or os.environ.get("MINTNET_DEBUG") == "1":
            raise
        print(f"mintnet: error: {_with_dashes(_one_line(error), command)}", file=sys.stderr)
        raise SystemExit(1) from None


def _run(command: Command) -> None:
    """Run a command, write its figures, also where something in them failed, and say what next."""
    if command.json is not None:
        output_place(command.json, "", option="--json")
    source = origin(command) if command.json is not None else {}
    flaw = None
    try:
        figures = command.run()
    except FlawedResult as found:
        flaw, figures = found, found.figures
    if command.json is not None or command.then:
        from mintnet.training.devices import is_first_process

        if is_first_process() and command.json is not None:
            write_bytes(command.json.expanduser(), to_json({**source, **figures}))
        if is_first_process() and command.then and not flaw:
            known = {name: shlex.quote(str(v)) for name, v in {**vars(command), **figures}.items()}
            then = command.then.format_map(known)
            console().print(f"Next: {then}", style="dim", markup=False)
    sys.stdout.flush()
    if flaw is not None:
        raise flaw


def parse(arguments: Sequence[str]) -> Command:
    """The command that the arguments name, with its options filled in.

    Its module alone is imported, unless they name none, or a group such as ``bench``.
    """
    known = {**COMMANDS, **TABLES} if is_about_a_table(arguments) else COMMANDS
    for length in (2, 1, 0):
        name, rest = " ".join(arguments[:length]), list(arguments[length:])
        group = [other for other in known if other.startswith(f"{name} ".lstrip())]
        if name in known or group:
            break
    if name in known:
        kind = _load(known[name], arguments)
    else:
        shown = [(other, other.removeprefix(name).strip()) for other in group]
        kind = Union[tuple(_choice(*pair) for pair in shown)]  # noqa: UP007
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            found: Command = tyro.cli(
                kind,
                prog=f"mintnet {name}".strip(),
                description=None if name else ABOUT,
                args=rest,
                config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
            )
    except SystemExit as end:
        if end.code:
            print(f"mintnet: error: {_wrong_call(said.getvalue(), rest)}", file=sys.stderr)
        raise
    return found


def _wrong_call(box: str, rest: Sequence[str]) -> str:
    """What is wrong with a call, in one line, from the box of several that tyro makes."""
    lines = [line.strip(" │╭╮╰╯─") for line in box.splitlines()[1:]]
    what = " ".join(takewhile(bool, lines))
    if "Argument helptext:" in lines and (got := re.findall(r"'([^']*)'", what)):
        return f"expected {lines[lines.index('Argument helptext:') + 1]}; got {got[-1]!r}"
    near = get_close_matches(rest[0], COMMANDS, 1) if rest and "subcommands" in box else ()
    return what + "".join(f"; did you mean {name}?" for name in near)


def is_about_a_table(arguments: Sequence[str]) -> bool:
    """Whether a word names a CSV file or the folder of a model of one."""
    for word in arguments[1:]:
        with suppress(OSError, ValueError, TypeError):
            if word.lower().endswith(".csv"):
                return True
            read_json(Path(word, "config.json"), {"kind": Literal["table"]})
            return True
    return False


def _load(place: str, arguments: Sequence[str] = ()) -> Any:
    """The class of a command, with the defaults that the arguments imply where it has such."""
    module, _, kind = place.partition(":")
    found = getattr(import_module(module), kind)
    return found.for_arguments(arguments) if hasattr(found, "for_arguments") else found


def _choice(name: str, shown: str) -> Any:
    """A command as one of several in a help text."""
    kind = _load({**TABLES, **COMMANDS}[name])
    words = (kind.__doc__ or "").partition("\n\n")[0]
    return Annotated[kind, tyro.conf.subcommand(shown, description=words)]


def _is_mistake(error: Exception) -> bool:
    """Whether it is something that a user can mend, and not a fault of the program."""
    from safetensors import SafetensorError

    from mintnet.solvers import InversionError

    if isinstance(error, ModuleNotFoundError):
        return not (error.name or "mintnet").startswith("mintnet")
    if isinstance(error, ValueError | InversionError | OSError | MemoryError | SafetensorError):
        return True
    return type(error).__name__ == "OutOfMemoryError" or NO_MEMORY in str(error)  # torch's


def _with_dashes(words: str, command: Command | None) -> str:
    """A message of the library with its arguments named as the options of the command."""
    groups = [value for value in vars(command).values() if is_dataclass(value)] if command else []
    names = [name for group in (command, *groups) if group for name in vars(group)]
    known = "|".join(name for name in names if name[-1] != "_" and name != "run_folder")
    found = re.match(rf"({known})(?=[ :])", words) if known else None
    return f"--{found[1].replace('_', '-')}{words[found.end() :]}" if found else words


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        extra = EXTRAS.get(module, "cli")
        return f"this command needs {module}: pip install 'mintnet[{extra}]'"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    if NO_MEMORY in str(error):
        return "there is not enough memory for that; ask for fewer or smaller images at a time"
    return " ".join(str(error).split()) or type(error).__name__

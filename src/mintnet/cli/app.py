"""`mintnet`: picks the command, runs it, and turns users' mistakes into one line."""

import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import is_dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Union
from unittest.mock import patch

import torch
import tyro
from safetensors import SafetensorError

from mintnet.analysis.origin import commit
from mintnet.cli.command import Command, FlawedResult
from mintnet.cli.output import console, output_place, print_commands, to_json
from mintnet.files import sha256, write_bytes
from mintnet.models.storage import WEIGHTS, did_you_mean, locate
from mintnet.schema import read_json
from mintnet.solvers import InversionError
from mintnet.training.devices import is_first_process

PACKAGE = "mintnet.benchmarks"  # not under ``src``
BENCH = ("train", "sample", "invert", "properties", "families", "accelerate", "score", "restore")
COMMANDS = {  # the module of each, whose class has the last word of the command as its name
    "train": "cli.train",
    "evaluate": "cli.train",
    **dict.fromkeys(("sample", "reconstruct", "interpolate", "verify", "tune-step"), "cli.images"),
    "report": "cli.train",
    **dict.fromkeys(("predict", "explain"), "cli.classify"),
    **dict.fromkeys(("score", "restore"), "cli.pictures"),
    **dict.fromkeys(("export", "info", "import-original", "data get"), "cli.info"),
    **{f"bench {name}": f"benchmarks.{name}" for name in BENCH},
    "studio": "studio",
    "demo": "cli.demo",
    "doctor": "cli.info",
}
TABLES = dict.fromkeys(("train", "sample", "score", "evaluate", "report"), "cli.tables")
"""The same commands about a CSV file, or about a model of one."""

ABOUT = "Invertible networks: exact likelihoods, verified inverses. See also --version."
FIRST_STEPS = {
    "mintnet demo": "everything once, small: 3 to 10 minutes",
    "mintnet sample mnist -n 16": "new digits from a model that comes with the package",
    "mintnet train folder --data PICTURES": "a model of your own pictures",
    "mintnet doctor": "what this machine has, and what is missing",
    "mintnet --help": "all commands; mintnet COMMAND --help for one of them",
}
MISTAKES = (ValueError, OSError, MemoryError, InversionError, SafetensorError)
HELP = {"-h", "--help"}
POSITIVE = ("count", "draws", "batch_size", "samples", "curve_images")


def run(arguments: list[str]) -> None:
    """Run the command that the arguments name; MINTNET_DEBUG=1 shows tracebacks of mistakes."""
    if arguments[:1] == ["--version"]:
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
    except Exception as error:
        words = _mistake(error)
        if words is None or os.environ.get("MINTNET_DEBUG") == "1":
            raise
        print(f"mintnet: error: {_with_dashes(words, command)}", file=sys.stderr)
        raise SystemExit(1) from None


def _run(command: Command) -> None:
    """Run a command, write its figures, also where something in them failed, and say what next."""
    for name in POSITIVE:
        if isinstance(value := vars(command).get(name), int) and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is at least 1; got {value}")
    facts: dict[str, Any] = {}
    if command.json is not None:
        output_place(command.json, "", option="--json")
        facts = {"command": command.typed, "commit": commit()}
        if isinstance(model := getattr(command, "model", None), str):
            with suppress(ValueError, OSError):  # a preset has no weights; `run` names a mistake
                facts["weights_sha256"] = sha256(locate(model) / WEIGHTS)
    flaw = None
    try:
        figures = command.run()
    except FlawedResult as found:
        flaw, figures = found, found.figures
    if command.json is not None and is_first_process():
        write_bytes(command.json.expanduser(), to_json({**facts, **figures}))
    if command.then and flaw is None and is_first_process():
        known = {name: shlex.quote(str(v)) for name, v in {**vars(command), **figures}.items()}
        console().print(f"Next: {command.then.format_map(known)}", style="dim", markup=False)
    sys.stdout.flush()
    if flaw is not None:
        raise flaw


def parse(arguments: Sequence[str]) -> Command:
    """The command that the arguments name; its module alone is imported, unless it is a group."""
    known = {**COMMANDS, **TABLES} if _is_about_a_table(arguments) else COMMANDS
    for length in (2, 1, 0):
        name, rest = " ".join(arguments[:length]), list(arguments[length:])
        group = [other for other in known if other.startswith(f"{name} ".lstrip())]
        if name in known or group:
            break
    if name in known:
        kind = _load(name, known[name], arguments)
    elif rest and not rest[0].startswith("-"):
        given = f"{name} {rest[0]}".strip()
        near = did_you_mean(given, known) or "; mintnet --help lists all"
        print(f"mintnet: error: unknown command {given}{near}", file=sys.stderr)
        raise SystemExit(2)
    else:
        kind = Union[tuple(_choice(other, name) for other in group)]  # noqa: UP007
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    if twice := next((flag for flag in flags if flags.count(flag) > 1), ""):
        print(f"mintnet: error: {twice} is given more than once", file=sys.stderr)
        raise SystemExit(2)
    prog, said = f"mintnet {name}".strip(), io.StringIO()
    config = tyro.conf.OmitSubcommandPrefixes, tyro.conf.DisallowNone
    about, wide = None if name else ABOUT, {"COLUMNS": "100000"}  # or words of a mistake are cut
    try:
        with redirect_stderr(said), patch.dict(os.environ, {} if HELP & {*rest} else wide):
            found: Command = tyro.cli(kind, prog=prog, description=about, args=rest, config=config)
    except SystemExit as end:
        if end.code:
            words = _wrong_call(prog, said.getvalue(), rest)
            if known.get(name) == "cli.tables":
                words += f"; the options for tables: mintnet {name} {rest[0]} --help"
            print(f"mintnet: error: {words}", file=sys.stderr)
        raise
    return found


def _is_about_a_table(arguments: Sequence[str]) -> bool:
    """Whether a word names a CSV file or the folder of a model of one."""
    for word in arguments[1:]:
        with suppress(OSError, ValueError, TypeError):
            if not word.lower().endswith(".csv"):
                read_json(Path(word, "config.json"), {"kind": Literal["table"]})
            return True
    return False


def _load(name: str, module: str, arguments: Sequence[str] = ()) -> Any:
    """The class of a command, with the defaults that the arguments imply where it has such."""
    package, _, last = module.partition(".")
    found = benchmarks(last) if package == "benchmarks" else import_module(f"mintnet.{module}")
    kind = getattr(found, name.split()[-1].title().replace("-", ""))
    return kind.for_arguments(arguments) if hasattr(kind, "for_arguments") else kind


def benchmarks(module: str) -> ModuleType:
    """A module of the benchmarks: in a wheel part of the package, in a clone beside ``src``."""
    if PACKAGE not in sys.modules and find_spec(PACKAGE) is None:
        file = Path(__file__).parents[3] / "benchmarks" / "__init__.py"
        spec = spec_from_file_location(PACKAGE, file)
        if spec is None or spec.loader is None or not file.is_file():
            raise ValueError("this installation has no benchmarks; install mintnet from a wheel")
        sys.modules[PACKAGE] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module(f"{PACKAGE}.{module}")


def _choice(name: str, group: str) -> Any:
    """A command as one of a group in a help text."""
    kind = _load(name, COMMANDS[name])
    words = (kind.__doc__ or "").partition("\n\n")[0]
    shown = name.removeprefix(group).strip()
    return Annotated[kind, tyro.conf.subcommand(shown, description=words)]


def _wrong_call(prog: str, box: str, rest: Sequence[str]) -> str:
    """What is wrong with a call, in one line, from the box of several that tyro makes."""
    lines = [re.sub(r"^-+$", "", line.strip(" │╭╮╰╯─")) for line in box.splitlines()[1:]]
    lines = lines[not any(lines[:1]) :]  # where there is no Unicode, a rule follows the title
    what, more = " ".join(takewhile(bool, lines)), f"{prog} --help"
    if "Argument helptext:" in lines and (got := re.findall(r"'([^']*)'", what)):
        wanted = lines[lines.index("Argument helptext:") + 1].replace("{", "").replace("}", "")
        several = re.search(r"from \[(.*?)\]", what)
        came = " ".join(re.findall(r"'([^']*)'", several[1])) if several else got[-1]
        return f"expected {re.sub(r'( [A-Z]+)?, -', '/-', wanted)}; got {came!r}"
    if found := re.match(r"invalid choice '(.*)' for argument '(\S+)'. Expected one of (.*)", what):
        known = sorted({*re.findall(r"'([^']*)'", found[3])} - {"None"})
        near = did_you_mean(found[1], known)
        return f"expected {found[2]} {'|'.join(known)}; got {found[1]!r}{near}"
    if found := re.match(r"Missing value for argument '(\S+)'", what):
        return f"expected a value after {found[1]}; {more} says which"
    if what.startswith("Missing from"):
        about = what.partition(lines[1])[2].replace(" (required)", "").strip(" .")
        return f"{prog} needs {lines[1]}: {about}; {more} says more"
    if not (found := re.match(r"Unrecognized(?: or misplaced)? options: (\S*[^,\s])", what)):
        return f"{what.rstrip('.')}; {more} says more"
    word = found[1]
    if word.startswith("-"):
        like = re.findall(r"--[a-z][\w-]*", box.partition("Perhaps you meant")[2])
        near = did_you_mean(word.partition("=")[0], like)
        return f"unknown option {word}{near or f'; {more} lists all'}"
    if flag := next((other for other in rest if other.endswith(f"={word}")), ""):
        return f"{flag.removesuffix(f'={word}')} takes no value; got {word!r}"
    before = " ".join([prog, *takewhile(lambda other: other != word, rest)])
    return f"expected no further word after {before}; got {word!r}; {more} says more"


def _mistake(error: Exception) -> str | None:
    """What a user can mend, in one line; None for a fault of the program."""
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ModuleNotFoundError):
        from mintnet.cli.info import EXTRAS

        module = (error.name or "mintnet").partition(".")[0]
        extra = next((name for name, (_, *brought) in EXTRAS.items() if module in brought), "cli")
        words = f"this command needs {module}: pip install 'mintnet[{extra}]'"
        return None if module.startswith("mintnet") else words
    if "can't allocate memory" in words:  # torch on a CPU, in an error that has no name of its own
        return "there is not enough memory for that; ask for fewer or smaller images at a time"
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return words if isinstance(error, (*MISTAKES, torch.OutOfMemoryError)) else None


def _with_dashes(words: str, command: Command | None) -> str:
    """A message of the library with its arguments named as the options of the command."""
    groups = [value for value in vars(command).values() if is_dataclass(value)] if command else []
    names = [name for group in (command, *groups) if group for name in vars(group)]
    names = [name for name in names if name != getattr(command, "model", None)]  # a folder count
    known = "|".join(name for name in names if name[-1] != "_" and name != "run_folder")
    found = re.match(rf"({known})(?=[ :])", words) if known else None
    return f"--{found[1].replace('_', '-')}{words[found.end() :]}" if found else words

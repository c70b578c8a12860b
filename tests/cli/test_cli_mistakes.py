"""Users' mistakes: one line, a code that is not 0, nothing overwritten."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from mintnet.models import Classifier, Flow
from registry import FIXTURES


@contextmanager
def full_disk(size: int = 64) -> Iterator[None]:
    """No file may grow beyond a few bytes: writing fails as on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


MODEL = "MODEL"  # stands for the model's folder

MISTAKES = [
    (["sample", "nowhere"], ["nowhere", "run folder"]),
    (["sample", "empty"], ["empty", "config.json"]),
    (["info", "words.txt"], ["words.txt"]),
    (["info", "folder"], ["mintnet train folder", "cifar10"]),
    (["train", "digits", "--schedule", "cosine", "--milestones", 0.5], ["belong to --schedule"]),
    (["train", "digits", "--muon", "--weight-decay", 0.1], ["Muon", "weight decay"]),
    (["train", "digits-classifer"], ["did you mean digits-classifier?"]),
    (["train", "empty"], ["mintnet train folder --data empty"]),
    (["train", "digits", "--data", "empty"], ["needs no files", "leave --data out"]),
    (["reconstruct", MODEL, "--data", "empty"], ["come with the package", "--data empty out"]),
    (["sample", "mnits"], ["expected a run folder", "did you mean mnist?"]),
    (["evaluate", MODEL, "--draws", 0], ["--draws is at least 1; got 0"]),
    (["evaluate", "mnist-classifier", "--bound", "importance"], ["--bound is for", "leave it out"]),
    (["evaluate", MODEL, "--classify"], ["no labels for --classify", "leave it out"]),
    (["verify", MODEL, "--divisors"], ["--divisors", "at least one number"]),
    (["bench", "sample", MODEL, "-n", 0], ["--count is at least 1; got 0"]),
    (["bench", "sample", MODEL, "--calls", 0], ["--calls is at least 1; got 0"]),
    (["bench", "sample", MODEL, "--step", "nan"], ["got nan"]),
    (["bench", "invert", MODEL, "--step", 3.5], ["got 3.5"]),
    (["bench", "invert", MODEL, "--repeats", 0], ["--repeats is at least 1"]),
    *((["bench", "invert", MODEL, "--device", d], [d, "cpu"]) for d in ("abacus", "cuda:99")),
    (["bench", "train", "abacus"], ["unknown preset"]),
    (["bench", "train", "digits", "--batch-size", 0], ["--batch-size is at least 1"]),
    (["bench", "families", "digits", "--families", "gan"], ["unknown family 'gan'"]),
    (["bench", "families", "digits", "--seconds", -1], ["--seconds is a positive number"]),
    (["bench", "families", "mnist", "--data", "empty"], ["empty"]),
    *((["sample", MODEL, "--device", d], [d, "cpu"]) for d in ("abacus", "meta", "mps", "cuda:99")),
    (["sample", MODEL, "-n", 0], ["--count"]),
    (["sample", MODEL, "--batch-size", 0], ["--batch-size"]),
    (["sample", MODEL, "--seed", 10**24], ["seed", 10**24]),
    (["sample", MODEL, "--out", "words.txt"], [".png", "words.txt"]),
    (["sample", MODEL, "--out", "s.unheard-of"], ["unheard-of"]),
    (["sample", MODEL, "-n", 2, "--out", "words.txt/s.png"], ["words.txt/s.png"]),
    (["sample", MODEL, "--temperature", -1], ["error: --temperature"]),
    (["train", "digits", "--learning-rate", -1, "--run", "r"], ["error: --learning-rate"]),
    (["predict", MODEL, "test:0"], ["density model", "classifier"]),
    (["sample", MODEL, "--solver", "fixed-point", "--step", 3.5], ["1/3.5"]),
    (["sample", MODEL, "--step", 0.5], ["--step belongs to", "--solver fixed-point"]),
    (["verify", MODEL, "--solver-steps", 5], ["--solver-steps belongs to"]),
    (["tune-step", MODEL, "--solver-steps", 0], ["--solver-steps is at least 1; got 0"]),
    (["predict", "mnist-classifier", "empty"], ["none of 0 pictures", "name other"]),
    (["sample", "digits-deep"], ["mintnet train digits-deep", "runs/digits-deep"]),
    (["evaluate", MODEL, "--data-set", "cifar"], ["has no 'cifar'", "did you mean cifar10?"]),
    (["interpolate", MODEL, "--images", 0, 1, 2, 360], ["359"]),
    (["verify", MODEL, "--divisors", 0.4], ["--divisors"]),
    (["verify", MODEL, "--iterations", -1], ["--iterations"]),
    (["verify", MODEL, "--out", "plot.doc"], ["plot.doc"]),
    (["reconstruct", MODEL, "--out", "empty"], ["empty"]),
    (["reconstruct", MODEL, "--count", 0], ["--count"]),
    (["report", MODEL, "--out", "empty", "--samples", 1], ["empty"]),
    (["report", MODEL, "--samples", 0], ["--samples"]),
    (["sample", MODEL, "--json", "empty"], ["--json"]),
    (["sample", MODEL, "--json", "words.txt/s.json"], ["--json"]),
    (["explain", MODEL, "test:0"], ["density model"]),
    (["evaluate", MODEL, "--out", "a.png"], ["--out"]),
    (["import-original", "nowhere.pth", "new"], ["nowhere.pth"]),
    (["import-original", "words.txt", "new"], ["words.txt"]),
    (["data", "get", "minst"], ["minst", "mnist"]),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_one_line_says_what_is_wrong(fails, model, arguments, words):
    Path("empty").mkdir()
    Path("words.txt").write_text("words")
    arguments = [model if word == MODEL else word for word in arguments]
    assert fails(arguments, *words)
    assert sorted(os.listdir()) == ["empty", "words.txt"] and not os.listdir("empty")
    assert Path("words.txt").read_text() == "words"


WRITING = ("evaluate", "explain", "report", "sample", "reconstruct", "interpolate", "verify")


@pytest.fixture
def nothing_is_computed(monkeypatch):
    """Any computation with a model is a failure."""

    def computed(*arguments, **options):
        raise AssertionError("the output was to be checked first")

    monkeypatch.setattr(torch.nn.functional, "conv2d", computed)


@pytest.mark.usefixtures("nothing_is_computed")
@pytest.mark.parametrize("command", WRITING)
def test_output_is_checked_before_the_work(fails, model, command):
    Path("file").write_text("in the way")
    Path("folder.png").mkdir()
    if command in ("evaluate", "explain", "report"):
        Classifier.preset("digits").save("c", data={"name": "digits"})
        model = "c"
    words = [command, model, *(["test:0"] if command == "explain" else [])]
    for place in ("file/a.png", "folder.png"):
        assert fails([*words, "--out", place], "--out", place, "cannot be written")
    if command != "report":
        assert fails([*words, "--out", "a.txt"], "--out", "a.txt", ".png")
    if Path("/proc/self").exists():
        assert fails([*words, "--json", "/proc/a.json"], "--json /proc/a.json")


def test_damaged_model(fails, model):
    shutil.copytree(model, "damaged")
    weights = Path("damaged/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    assert fails(["sample", "damaged"], "damaged")
    Path("damaged/config.json").write_text("{")
    assert fails(["sample", "damaged"], "damaged")


def test_model_without_data(fails, tiny_flow):
    tiny_flow.save("m")
    assert fails(["reconstruct", "m"], "--data-set")
    assert fails(["reconstruct", "m", "--data-set", "cifar10"], "--data")
    assert fails(["reconstruct", "m", "--data-set", "mnist"], "mnist-slice has (1, 28, 28)")
    assert fails(["reconstruct", "m", "--data-set", "mnist", "--data", "nowhere"], "nowhere")


def test_not_verified_writes_nothing(fails, model):
    assert fails(["sample", model, "--solver", "fixed-point", "--solver-steps", 0], "not verified")
    assert not Path("samples.png").exists()


def test_wrong_calls_end_with_2_and_one_line(mintnet, model):
    for arguments, words in (
        (["smaple"], "unknown command smaple; did you mean sample?"),
        (["data", "gt"], "unknown command data gt; did you mean data get?"),
        (["bench", "famlies"], "did you mean bench families?"),
        (["sample"], "mintnet sample needs MODEL"),
        (["train", "digits", "--learning-rat", "3"], "-rat; did you mean --learning-rate?"),
        (["sample", model, "--xyz"], "unknown option --xyz; mintnet sample --help lists all"),
        (["sample", model, "--solver", "bisect"], "got 'bisect'; did you mean bisection?"),
        (["sample", model, "--label"], "expected a value after --label"),
        (["sample", model, "--seed", "1", "2"], "--seed 1; got '2'; mintnet sample --help"),
        (["train", "digits", "--resume", "4"], "after mintnet train digits --resume; got '4'"),
        (["interpolate", model, "--images", "1", "2"], "--images INT INT INT INT; got '1 2'"),
        (["sample", model, "--label", "3", "--label=4"], "--label is given more than once"),
        (["sample", model, "--seed", "1.5"], "expected --seed INT; got '1.5'"),
        (["train", "digits", "--epochs", "ten"], "expected --epochs INT; got 'ten'"),
        (["train", "digits", "--resume=maybe"], "--resume takes no value; got 'maybe'"),
        (["sample", model, "-n", "abc"], "expected -n/--count INT; got 'abc'"),
        (["sample", model, "f/" * 60], f"after mintnet sample {model}; got '{'f/' * 60}'"),
        (["--json", "x"], "unknown option --json"),
        (["data"], "NAME"),
    ):
        code, _, err = mintnet(*arguments)
        assert code == 2 and err.startswith("mintnet: error: ") and err.count("\n") == 1, err
        assert words in err


def test_full_disk_keeps_what_was_there(fails, model):
    for name in ("samples.png", "figures.json"):
        Path(name).write_bytes(b"old")
    with full_disk():
        sample = ["sample", model, "-n", 4, "--out", "samples.png"]
        assert fails(sample, "samples.png", "cannot be written")
        assert fails(["info", model, "--json", "figures.json"], "figures.json")
    assert Path("samples.png").read_bytes() == Path("figures.json").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["figures.json", "samples.png"]  # nothing half-written


def test_mistakes_in_imports_and_a_full_disk(fails):
    with full_disk():
        assert fails(["import-original", FIXTURES / "original_density_grey.pth", "full"])
    assert not Path("full/config.json").exists()
    Path("mine").mkdir()
    Path("mine/file").touch()
    assert fails(["import-original", FIXTURES / "original_density_grey.pth", "mine"], "not empty")
    assert os.listdir("mine") == ["file"]
    source = FIXTURES / "original_classifier.pth"
    assert fails(["import-original", source, "new", "--logit-lambda", 0.1], "no logit")
    assert not Path("new").exists()


def test_damaged_data(fails, model):
    Path("data").mkdir()
    Path("data/train-images-idx3-ubyte").write_bytes(b"short")
    assert fails(["data", "get", "mnist", "data"], "train-images-idx3-ubyte")
    assert Path("data/train-images-idx3-ubyte").read_bytes() == b"short"


def raising(error):
    def solve(*_: object, **__: object) -> None:
        raise error

    return solve


NO_MEMORY = "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 1e15"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), ["out of memory"]),
        (RuntimeError(NO_MEMORY), ["not enough memory", "fewer or smaller images"]),
        (OSError(errno.ENOSPC, "No space left", "somewhere"), ["somewhere: No space left"]),
        (ModuleNotFoundError("", name="matplotlib.axes"), ["matplotlib", "'mintnet[cli]'"]),
        (ModuleNotFoundError("", name="tensorboard"), ["'mintnet[tensorboard]'"]),
    ],
)
def test_what_the_machine_lacks(fails, model, monkeypatch, error, words):
    monkeypatch.setattr(Flow, "solve", raising(error))
    assert fails(["sample", model], *words)


def test_interrupt_is_no_error(mintnet, model, monkeypatch):
    monkeypatch.setattr(Flow, "solve", raising(KeyboardInterrupt()))
    code, _, err = mintnet("sample", model)
    assert code == 130 and err == "mintnet: interrupted\n"


def test_interrupt_while_torch_is_imported():
    words = "import sys, signal, mintnet_command; sys.modules['mintnet'] = None\n"
    words += "class Stop:\n    def find_spec(*_):\n        signal.raise_signal(signal.SIGINT)\n"
    words += "del sys.modules['mintnet']; sys.meta_path.insert(0, Stop); mintnet_command.main()"
    call = [sys.executable, "-c", words]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 130 and done.stderr == "mintnet: interrupted\n"


def test_what_shows_its_traceback(mintnet, model, monkeypatch):
    monkeypatch.setattr(Flow, "solve", raising(KeyError("a bug")))
    with pytest.raises(KeyError):
        mintnet("sample", model)
    monkeypatch.setenv("MINTNET_DEBUG", "1")
    with pytest.raises(ValueError):
        mintnet("sample", "nowhere")


def test_without_the_extra_one_line_says_what_to_install():
    words = "import sys; sys.modules['tyro'] = None; from mintnet.cli import main; main(['train'])"
    call = [sys.executable, "-c", words]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "pip install 'mintnet[cli]'" in done.stderr


@pytest.mark.parametrize(("rank", "writes"), [("0", True), ("1", False)])
def test_only_the_first_of_all_processes_writes_figures(mintnet, model, monkeypatch, rank, writes):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("NODE_RANK", rank)
    assert mintnet("info", model, "--json", "i.json").code == 0
    assert Path("i.json").exists() is writes


def test_json_is_valid_where_figures_are_not_numbers(mintnet, model, monkeypatch):
    from mintnet.cli.info import Info

    monkeypatch.setattr(Info, "run", lambda self: {"bpd": float("nan"), "at": [float("inf"), 1]})
    assert mintnet("info", model, "--json", "i.json").code == 0
    found = json.loads(Path("i.json").read_text())
    assert (found["bpd"], found["at"]) == (None, ["inf", 1])

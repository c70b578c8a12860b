"""Users' mistakes: one line, a code that is not 0, nothing overwritten."""

import errno
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from PIL import Image

from mintnet.models import Classifier, Flow, MintNetConfig


@contextmanager
def full_disk(size: int = 64) -> Iterator[None]:
    """No file may grow beyond a few bytes: writing fails as on a disk without room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("device", ["abacus", "meta", "mps", "cuda:99"])
def test_devices_that_are_not_there(fails, model, device):
    assert fails(["bench", "growth", "--device", device], device, "cpu")
    assert fails(["bench", "invert", model, "--device", device], device, "cpu")
    assert fails(["sample", model, "--device", device], device, "cpu")


def test_bench_of_nothing(fails, model):
    assert fails(["bench", "invert", model, "--repeats", 0], "--repeats")
    assert fails(["bench", "invert", model, "--count", 0], "--count")
    assert fails(["bench", "invert", model, "--step", 0, "--count", 1], "step", 0)
    for limit in (-1, "nan"):
        assert fails(["bench", "invert", model, "--time-limit", limit], "time limit", "at least 0")


def test_the_net_of_folder_is_not_known_before_its_pictures(fails):
    assert fails(["info", "folder"], "mintnet train folder", "cifar10")


def test_options_of_training_that_contradict_each_other(fails):
    assert fails(["train", "digits", "--plain", "--compile"], "--plain", "--compile")
    assert fails(["train", "digits", "--no-validation", "--validation", 0.1], "--validation")
    for option, value in (("--milestones", 0.5), ("--hold", 0.5)):
        words = ["train", "digits", "--schedule", "cosine", option, value]
        assert fails(words, option[2:], "--schedule")
    share = ["--unmasked-step", 0.3]
    assert fails(["train", "digits", *share], "unmasked_step", "muon")
    assert fails(["train", "digits", "--muon", *share], "--unmasked-step", "--couplings")
    assert fails(["train", "digits", "--muon", "--unmasked-step", 3], "share", "3")


@pytest.fixture
def nothing_is_computed(monkeypatch):
    """Any computation with a model is a failure."""

    def computed(*arguments, **options):
        raise AssertionError("the output was to be checked first")

    monkeypatch.setattr(torch.nn.functional, "conv2d", computed)


@pytest.mark.usefixtures("nothing_is_computed")
def test_output_is_checked_before_the_work(fails, model):
    Path("file").write_text("in the way")
    Path("folder.png").mkdir()
    Classifier.preset("digits").save("c", data={"name": "digits"})
    monitored = {
        "c": (["evaluate", "c"], ["explain", "c", "test:0"], ["report", "c"]),
        "model": (
            ["bench", "invert", model],
            ["bench", "growth"],
            ["bench", "train", "digits"],
            ["bench", "sample", model],
            ["sample", model],
            ["reconstruct", model],
            ["interpolate", model],
            ["tune-step", model],
            ["verify", model],
        ),
    }
    for commands in monitored.values():
        for command in commands:
            for place in ("file/a.png", "folder.png"):
                assert fails([*command, "--out", place], "--out", place, "cannot be written")
    for command in (["evaluate", "c"], ["explain", "c", "test:0"], *monitored["model"][:4]):
        assert fails([*command, "--out", "a.txt"], "--out", "a.txt", ".png")
    Path("a.json").mkdir()
    assert fails(["explain", "c", "test:0", "--out", "a.png"], "a.json")


def test_no_model(fails):
    assert fails(["sample", "nowhere"], "nowhere", "run folder")
    Path("empty").mkdir()
    assert fails(["sample", "empty"], "empty", "config.json")
    Path("words.txt").write_text("words")
    assert fails(["info", "words.txt"], "words.txt")


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


def test_data_of_another_shape(fails):
    Flow(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,))).save("m", data="digits")
    assert fails(["reconstruct", "m"], "(1, 4, 4)", "(1, 8, 8)")


def test_text_file_among_pictures(fails):
    Flow(MintNetConfig((3, 8, 8), pairs=(1,), filters=(2,))).save("m", data="folder")
    Path("pictures").mkdir()
    for k in range(12):
        Image.new("RGB", (8, 8)).save(f"pictures/{k}.png")
    Path("pictures/notes.txt").write_text("not a picture")
    assert fails(["reconstruct", "m", "--data", "pictures"], "notes.txt")


def test_options_out_of_range(fails, model):
    assert fails(["sample", model, "-n", 0], "--count")
    assert fails(["sample", model, "--seed", 10**24], "64 bits")
    assert fails(["sample", model, "--out", "words.txt"], ".png", "words.txt")
    assert fails(["sample", model, "--temperature", -1], "temperature")
    assert fails(["sample", model, "--solver", "fixed-point", "--step", 3.5], "1/3.5")
    assert fails(["sample", model, "--step", 0.5], "--step belongs to", "--solver fixed-point")
    assert fails(["verify", model, "--solver-steps", 5], "--solver-steps belongs to")
    assert fails(["tune-step", model, "--step", 0.5], "tune-step", "leave out --step")
    assert fails(["interpolate", model, "--images", 0, 1, 2, 360], "359")
    assert fails(["verify", model, "--divisors", 0.4], "--divisors")
    assert fails(["verify", model, "--out", "plot.doc"], "plot.doc")
    assert fails(["sample", model, "--device", "abacus"], "abacus")


def test_not_converged_writes_nothing(fails, model):
    assert fails(["sample", model, "--solver", "fixed-point", "--solver-steps", 0], "not verified")
    assert not Path("samples.png").exists()


def test_wrong_calls_end_with_2(mintnet, model):
    for arguments in (["smaple"], ["sample"], ["sample", model, "--tempo", "3"], ["data"]):
        code, _, err = mintnet(*arguments)
        assert code == 2 and err and "Traceback" not in err


def test_full_disk_keeps_what_was_there(fails, model):
    for name in ("samples.png", "figures.json"):
        Path(name).write_bytes(b"old")
    with full_disk():
        assert fails(["sample", model, "-n", 4], "samples.png", "cannot be written")
        assert fails(["info", model, "--json", "figures.json"], "figures.json")
    assert Path("samples.png").read_bytes() == Path("figures.json").read_bytes() == b"old"
    assert sorted(os.listdir()) == ["figures.json", "samples.png"]  # nothing half-written


def test_full_disk_while_a_model_is_saved(fails, fixtures):
    with full_disk():
        assert fails(["import-original", fixtures / "original_density_grey.pth", "new"])
    assert not Path("new/config.json").exists()


def test_import_never_overwrites(fails, fixtures, model):
    shutil.copytree(model, "mine")
    before = Path("mine/model.safetensors").read_bytes()
    assert fails(["import-original", fixtures / "original_density_grey.pth", "mine"], "not empty")
    assert Path("mine/model.safetensors").read_bytes() == before


def test_import_of_other_files(fails, fixtures):
    assert fails(["import-original", "nowhere.pth", "new"], "nowhere.pth")
    Path("words.pth").write_text("words")
    assert fails(["import-original", "words.pth", "new"], "words.pth")
    classifier = fixtures / "original_classifier.pth"
    assert fails(
        ["import-original", classifier, "new", "--logit-lambda", 0.1], "classifier", "no logit"
    )
    assert not Path("new").exists()


def test_places_that_cannot_be_written(fails, model):
    Path("file").write_text("a file, not a folder")
    Path("folder").mkdir()
    assert fails(["sample", model, "-n", 2, "--out", "file/s.png"], "file/s.png")
    assert fails(["sample", model, "-n", 2, "--out", "folder"], "folder")
    assert fails(["sample", model, "-n", 2, "--out", "s.unheard-of"], "unheard-of")
    assert fails(["sample", model, "--json", "folder"], "--json")
    if Path("/proc/self").exists():
        assert fails(["sample", model, "--json", "/proc/a.json"], "--json /proc/a.json")
    assert fails(["sample", model, "--json", "file/s.json"], "--json")
    assert fails(
        ["report", model, "--out", "folder", "--samples", 1, "--reconstructions", 1], "folder"
    )
    assert Path("file").read_text() == "a file, not a folder"


def test_damaged_data(fails, model):
    Path("data").mkdir()
    Path("data/train-images-idx3-ubyte").write_bytes(b"short")
    assert fails(["data", "verify", "mnist", "data"], "missing or damaged")
    assert fails(["data", "get", "mnist", "data"], "train-images-idx3-ubyte")
    assert fails(["data", "get", "minst"], "minst", "mnist")
    assert Path("data/train-images-idx3-ubyte").read_bytes() == b"short"


def test_interrupt(mintnet, model, monkeypatch):
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Flow, "solve", stop)
    code, _, err = mintnet("sample", model)
    assert code == 130 and err == "mintnet: interrupted\n"


def test_a_fault_of_the_program_shows_itself(mintnet, model, monkeypatch):
    def fault(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Flow, "solve", fault)
    with pytest.raises(KeyError):
        mintnet("sample", model)


def test_debug_shows_the_traceback(mintnet, monkeypatch):
    monkeypatch.setenv("MINTNET_DEBUG", "1")
    with pytest.raises(ValueError):
        mintnet("sample", "nowhere")


def test_out_of_memory_and_of_disk(fails, model, monkeypatch):
    def too_much(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def no_room(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "somewhere")

    monkeypatch.setattr(Flow, "solve", too_much)
    assert fails(["sample", model], "out of memory")
    message = "[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory: 1e15"
    monkeypatch.setattr(Flow, "solve", lambda *_: (_ for _ in ()).throw(RuntimeError(message)))
    assert fails(["sample", model], "not enough memory", "fewer or smaller images")
    monkeypatch.setattr(Flow, "solve", no_room)
    assert fails(["sample", model], "somewhere: No space left on device")


def test_json_is_valid_where_figures_are_not_numbers(mintnet, model, monkeypatch):
    from mintnet.cli.info import Info

    monkeypatch.setattr(Info, "run", lambda self: {"bpd": float("nan"), "at": [float("inf"), 1]})
    assert mintnet("info", model, "--json", "i.json").code == 0
    found = json.loads(Path("i.json").read_text())
    assert (found["bpd"], found["at"]) == (None, ["inf", 1])

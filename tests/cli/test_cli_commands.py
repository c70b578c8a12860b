"""Each command does its work: pictures, figures, exit code 0."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mintnet.data import load
from mintnet.files import sha256
from mintnet.models import Flow, MintNetConfig
from registry import FIXTURES


def figures(path: str) -> dict:
    return json.loads(Path(path).read_text())


def test_sample(mintnet, model):
    code, out, _ = mintnet("sample", model, "-n", 9, "--out", "new/s.png", "--json", "s.json")
    assert code == 0 and "9 of 9 inversions verified" in out
    assert Image.open("new/s.png").size == (3 * 8 * 27 + 2 * 13, 3 * 8 * 27 + 2 * 13)
    found = figures("s.json")
    assert found["verified"] == found["samples"] == 9
    assert found["end_to_end_residual"] < 1e-3 and found["worst_layer_residual"] < 1e-5


def test_every_solver_has_a_name():
    from mintnet.cli.images import Sample
    from mintnet.solvers import Bisection, FixedPoint, Wavefront

    def chosen(**options):
        return Sample(model="any", **options).chosen_solver()

    assert chosen() is None and chosen(solver="wavefront") == Wavefront()
    assert chosen(solver="bisection") == Bisection()
    assert chosen(solver="fixed-point", step=0.5, solver_steps=9) == FixedPoint(0.5, 9)


def test_reconstruct(mintnet, model):
    code, out, _ = mintnet("reconstruct", model, "-n", 20, "--json", "r.json")
    assert code == 0 and "20 of 20 images came back byte for byte" in out
    assert "pixels in [0, 1]" in out
    found = figures("r.json")
    assert found["byte_exact"] == 20 and found["mean_error"] < 1e-9
    assert Path("reconstructions.png").is_file()


def test_interpolate(mintnet, model):
    assert mintnet("interpolate", model, "--images", 5, 3, 1, 0, "--json", "i.json").code == 0
    found = figures("i.json")
    assert found["command"].startswith("mintnet interpolate") and found["commit"]
    assert found["weights_sha256"] == sha256(model / "model.safetensors")
    assert found["images"] == [5, 3, 1, 0] and found["verified"] == found["samples"] == 64
    assert Image.open("interpolation.png").size[0] > 500
    assert mintnet("interpolate", model, "--seed", 4).code == 0


def test_verify(mintnet, model):
    code, out, _ = mintnet(
        "verify", model, "-n", 6, "--iterations", 1, 4, 40, "--json", "v.json", "--out", "v.svg"
    )
    assert code == 0 and "lower MintLayer 1×8×8, K = 3" in out
    found = figures("v.json")
    assert [curve["divisor"] for curve in found["curves"]] == [1.0, 3.5]
    assert all(len(curve["error"]) == 3 for curve in found["curves"])
    assert found["curves"][0]["error"][0] > found["curves"][0]["error"][2]
    assert len(found["layers"]) == 4 and all(row["failures"] == 0 for row in found["layers"])
    assert 0 < found["typical_error"] <= found["mean_error"] <= found["worst_error"]
    assert "auto: 6 of 6 verified" in Path("v.svg").read_text()


def test_tune_step(mintnet, model):
    code, out, _ = mintnet("tune-step", model, "-n", 4, "--solver-steps", 6, "--json", "t.json")
    assert code == 0 and "the divisor" in out
    found = figures("t.json")
    assert found["step"] == pytest.approx(1 / found["divisor"])
    assert found["error"] <= max(1e-12, min(trial["error"] for trial in found["trials"]))
    assert {1.0, 1.5, 5.0} <= {t["divisor"] for t in found["trials"] if t["round"] == 1}


def test_info(mintnet, model):
    code, out, _ = mintnet("info", model, "--json", "i.json")
    assert code == 0 and "1 × 8 × 8, 17 levels" in out
    assert figures("i.json")["net"]["filters"] == [3, 1]
    code, out, _ = mintnet("info", "imagenet32")
    assert code == 0 and "fresh weights" in out
    code, out, _ = mintnet("info", "mnist", "--json", "m.json")
    assert code == 0 and "comes with the package" in out
    assert figures("m.json")["parameters"] == 1_026_452


def test_import_original(mintnet):
    source = FIXTURES / "original_density_grey.pth"
    code, out, _ = mintnet("import-original", source, "imported", "--json", "i.json")
    assert code == 0 and "λ = " in out and mintnet("info", "imported").code == 0
    assert Flow.load("imported").net.parameter_count() == figures("i.json")["parameters"]
    shutil.copy(FIXTURES / "original_density_grey.pth", "alone.pth")
    assert mintnet("import-original", "alone.pth", "m", "--logit-lambda", 0.01).code == 0
    assert Flow.load("m").pixels.lam == 0.01


def test_report(mintnet, tiny_flow):
    tiny_flow.save("run/last", preset="digits", data={"name": "digits"})
    row = '{"kind": "train", "step": 10, "bpd": 3}\n{"kind": "validation", "step": 20, "bpd": 2}\n'
    Path("run/metrics.jsonl").write_text(row + '{"kind": "tr')
    Path("run/run.json").write_text('{"seed": "<b>7</b>"}')
    command = ("report", "run", "--samples", 4, "--json", "r.json")
    code, out, _ = mintnet(*command)
    assert code == 0 and "run/report.html" in out and "replaced" not in out
    assert "replaced run/report.html" in mintnet(*command).out
    page = Path("run/report.html").read_text()
    for words in ("Samples", "Training", "Reconstructions", "Interpolation", "Invertibility"):
        assert f"<h2>{words}</h2>" in page
    assert "<b>7</b>" not in page and "&lt;b&gt;7" in page
    assert figures("r.json")["headlines"]["images back byte for byte"] == "32 / 32"


def test_help_lists_every_command(mintnet):
    code, out, _ = mintnet("--help")
    assert code == 0
    for name in ("train", "predict", "sample", "tune-step", "import-original", "doctor", "data"):
        assert f"• {name} " in out
    assert "families" in mintnet("bench", "--help").out
    code, out, _ = mintnet("--version")
    assert code == 0 and out.startswith("mintnet ") and out.count("\n") == 1


def test_the_command_line_is_light():
    """Neither plots nor training are loaded before they are needed."""
    heavy = "matplotlib", "lightning_fabric", "PIL", "tensorboard", "pooch", "jinja2"
    words = f"""
import sys, torch
before = set(sys.modules)
from mintnet.cli.app import parse
parse(["sample", "model"])
print([name for name in {heavy!r} if name in set(sys.modules) - before])
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_folder_of_pictures(mintnet, caplog):
    wide = type(Flow.preset("digits").net.config)((3, 8, 8), pairs=(1,), filters=(2,))
    Flow(wide).save("m", preset="folder", data={"name": "folder", "folder": "pictures"})
    Path("pictures").mkdir()
    for k in range(20):
        Image.new("RGB", (9, 12), (k, 2 * k, 3 * k)).save(f"pictures/{k}.png")
    Path("pictures/notes.txt").write_text("not a picture")
    assert mintnet("reconstruct", "m", "-n", 2).code == 0 and "notes.txt" in caplog.text
    assert mintnet("reconstruct", "m", "--data", "pictures").code == 0


def pictures(folder, *labels, size=12):
    """Ten noisy pictures with each label, in a subfolder of that name."""
    for label in labels:
        Path(folder, label).mkdir(parents=True)
        for k in range(10):
            pixels = np.random.default_rng(k).integers(0, 256, (size, size), dtype=np.uint8)
            Image.fromarray(pixels).save(Path(folder, label, f"{k}.png"))


SMALL = ("--grey", "--max-steps", 1, "--sample-every", 0, "--batch-size", 4)


def test_a_size_that_does_not_halve_is_told(mintnet):
    pictures("pictures", "")
    train = ("train", "folder", "--data", "pictures", *SMALL)
    code, out, _ = mintnet(*train, "--size", 9, "--run", "odd")
    (line,) = [line for line in out.splitlines() if line.startswith("warning: ")]
    assert code == 0 and "9 × 9" in line and "1 stage" in line and "--size 10 would" in line
    assert "warning" not in mintnet(*train, "--size", 10, "--run", "even").out
    for number, chosen in enumerate((("--pairs", 1), ("--layers", 1))):
        assert "warning" not in mintnet(*train, "--size", 9, *chosen, "--run", number).out


def test_subfolders_are_labels(mintnet, fails):
    pictures("pictures", "cat", "dog", "gnu")
    train = ("train", "folder", "--data", "pictures", "--size", 8, *SMALL, "--labels")
    options = ("--filters", 2, "--lr", 0.5, "--warmup", 0, "--ema", 0, "--run", "r")
    assert mintnet(*train, *options).code == 0
    assert figures("r/last/config.json")["data"]["classes"] == ["cat", "dog", "gnu"]
    assert "dog" in mintnet("info", "r").out
    for label in ("dog", "1"):
        assert mintnet("sample", "r", "-n", 2, "--label", label, "--out", f"{label}.npy").code == 0
    assert (np.load("dog.npy") == np.load("1.npy")).all()
    fails(["sample", "r", "--label", "cow"], "cow", "3 classes", "cat, dog, gnu")
    assert mintnet("evaluate", "r", "--json", "all.json").code == 0
    assert mintnet("report", "r").code == 0
    # A folder with some of the labels: they keep their numbers.
    pictures("dogs", "dog")
    pictures("cows", "cow")
    mintnet("evaluate", "r", "--data", "dogs", "--split", "train", "--json", "dogs.json")
    images = load("folder", "train", "dogs", size=8, grey=True).images
    flow = Flow.load("r")
    cat, dog = (float(flow.bits_per_dim(images, labels=k).detach().mean()) for k in (0, 1))
    assert figures("dogs.json")["bits_per_dim"] == pytest.approx(dog, abs=1e-5)
    assert abs(cat - dog) > 1e-3
    fails(["evaluate", "r", "--data", "cows"], "cat, dog, gnu", "got cow")
    pictures("plain", "")
    fails(["train", "folder", "--data", "plain", "--size", 8, *SMALL, "--labels"], "subfolder")


def test_sample_never_overwrites_in_silence(mintnet, model):
    for name in ("samples.png", "samples-2.png", "samples-3.png"):
        code, out, _ = mintnet("sample", model, "-n", 1)
        assert code == 0 and out.splitlines()[-2] == name and Path(name).is_file()
    assert "replaced samples.png" in mintnet("sample", model, "-n", 1, "--out", "samples.png").out
    assert "a [bold]b[/].png" in mintnet("sample", model, "-n", 1, "--out", "a [bold]b[/].png").out


def test_sample_as_single_files_and_as_an_array(mintnet, fails, model, tiny_flow):
    assert mintnet("sample", model, "-n", 3, "--out", "folder").code == 0
    assert mintnet("sample", model, "-n", 3, "--out", "s.npy").code == 0
    images = np.load("s.npy")
    assert images.dtype == np.uint8 and images.shape == (3, *tiny_flow.shape)
    names = [f"000{k}.png" for k in range(3)]
    assert sorted(path.name for path in Path("folder").iterdir()) == names
    single = np.asarray(Image.open("folder/0001.png").convert("L"))
    np.testing.assert_array_equal(single, (images[1, 0] * (255 / 16)).round())
    assert fails(["sample", model, "--out", "folder"], "folder", "files in it")


def test_progress_is_told_in_plain_lines(mintnet, model, monkeypatch):
    monkeypatch.setattr("mintnet.training.output.FIRST", 0.0)
    out = mintnet("reconstruct", model, "-n", 6, "--batch-size", 3).out
    assert "6 images through the network and back\n" in out and " back: 50%" in out


def test_info_and_verify_name_layers_alike_couplings_too(mintnet, tmp_path):
    flow = Flow(MintNetConfig((1, 8, 8), (1, 1), (3, 1), couplings=4), 0.01, 17)
    flow.save(tmp_path / "coupled", data={"name": "digits", "version": "digits"})
    assert mintnet("info", tmp_path / "coupled", "--json", "i.json").code == 0
    mintnet("verify", tmp_path / "coupled", "-n", 2, "--iterations", 1, "--json", "v.json")
    rows, known = figures("v.json")["layers"], figures("i.json")
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["name"] for row in rows] == [layer["name"] for layer in known["layers"]]
    assert sum(layer["parameters"] for layer in known["layers"]) == known["parameters"]


def test_without_arguments_five_lines_say_what_to_do(mintnet):
    code, out, err = mintnet()
    assert code == 0 and not err and len(out.splitlines()) == 5
    assert all(line.startswith("  mintnet ") for line in out.splitlines())


def test_commands_end_with_what_to_do_next(mintnet, model):
    for words, then in (
        (["reconstruct", model, "-n", 1], f"verify {model}"),
        (["info", model], f"report {model}"),
        (["data", "get", "digits", "a b"], "train digits"),
        (["info", "cifar10-classifier"], "train cifar10-classifier"),
        (
            ["tune-step", model, "-n", 1, "--solver-steps", 1],
            f"verify {model} --solver fixed-point --step 0.9",
        ),
    ):
        assert mintnet(*words).out.splitlines()[-1].startswith(f"Next: mintnet {then}")


def test_doctor(mintnet, monkeypatch):
    monkeypatch.setattr("mintnet.cli.info.find_spec", lambda name: name != "gradio" or None)
    code, out, _ = mintnet("doctor", "--json", "d.json")
    assert code == 0 and "torch 2." in out and "pip install 'mintnet[studio]'" in out
    assert figures("d.json")["missing"] == {"studio": ["gradio"]}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion_has_commands_and_their_options(mintnet, shell):
    code, out, _ = mintnet("--tyro-print-completion", shell)
    assert code == 0 and "reconstruct" in out and "curve-images" in out and "mintnet" in out

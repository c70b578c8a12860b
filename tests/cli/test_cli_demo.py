"""The demo and its parts, with a small model in the place of the one that comes along."""

import json
from pathlib import Path

import pytest
import torch

from mintnet.cli import demo
from mintnet.data import mnist_slice
from mintnet.models import Flow, MintNetConfig, storage
from mintnet.training import RunFolder
from mintnet.training.folder import FORMAT


@pytest.fixture
def shipped_mnist(tmp_path, monkeypatch):
    torch.manual_seed(0)
    flow = Flow(MintNetConfig((1, 28, 28), (1, 1), (3, 1)), 0.05)
    flow.save(tmp_path / "mnist", preset="mnist", data={"name": "mnist"}, test_bits_per_dim=9.5)
    monkeypatch.setitem(storage.SHIPPED, "mnist", tmp_path / "mnist")


def write_run(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    run = {"format": FORMAT, "recipe": {}, "data": {}, "steps": 100}
    (folder / "run.json").write_text(json.dumps(run))
    state = {"best": None, "best_step": 0, "seconds": 0.0, "model": {}, "optimizer": {}}
    RunFolder(folder).write_checkpoint({"step": step, **state})


def test_where_the_run_goes(tmp_path):
    first, second, third = (tmp_path / f"demo{end}" for end in ("", "-2", "-3"))
    assert demo.free_folder(first) == first
    write_run(first, step=100)
    assert demo.free_folder(first) == second  # a finished run is left alone
    write_run(second, step=40)
    assert demo.free_folder(first) == second  # an interrupted one goes on
    for content in ("words", "{"):
        (second / "run.json").write_text(content)
        assert demo.free_folder(first) == third
    third.write_text("a file")
    assert demo.free_folder(first) == tmp_path / "demo-4"


def test_some_images_of_mnist_need_no_files(mintnet, shipped_mnist):
    code, out, err = mintnet("reconstruct", "mnist", "-n", 2, "--solver", "wavefront")
    assert code == 0 and "2 of 2 images came back byte for byte" in out, err
    assert "128 images of MNIST's test set that ship with the package" in out
    code, out, err = mintnet("evaluate", "mnist", "--json", "e.json")
    assert code == 0 and "that ship with the package" in out and "on 128 test images" in out, err
    assert json.loads(Path("e.json").read_text())["data"] == "mnist-slice"


def test_parts_are_numbered_and_the_best_come_first(mintnet, shipped_mnist, tiny_flow, monkeypatch):
    tiny_flow.save("run/last", preset="digits", data={"name": "digits"})
    monkeypatch.setattr(demo.Demo, "_train", lambda self, out: {"run": "run"})
    code, out, err = mintnet("demo", "--json", "facts.json")
    assert code == 0, err
    assert "autograd's 64 × 64 Jacobian" in out.replace("\n", " ")
    heads = [line for line in out.splitlines() if line[1:2] == "."]
    assert [head[0] for head in heads] == list("123456") and "next" in heads[-1]
    assert "mintnet train folder --data PICTURES" in out and "CC BY-SA 3.0) have 9.5." in out
    figures, page = json.loads(Path("facts.json").read_text()), Path("run/report.html").resolve()
    assert page.as_uri() in out.partition("What to try next")[2]
    with torch.no_grad():
        expected = Flow.from_pretrained("mnist").bits_per_dim(mnist_slice().images).mean()
    assert figures["pretrained"]["bits_per_dim"] == pytest.approx(float(expected), rel=1e-5)
    assert "bits below the better simple model" in figures["headlines"]
    text = page.read_text()
    assert text.index("MNIST, drawn from the model") < text.index("<h2>Samples</h2>")
    for name in ("mnist-samples.png", "mnist-interpolation.png"):
        assert (page.parent / name).is_file()


@pytest.mark.slow
def test_twice_in_a_row(mintnet):
    for number, name in enumerate(("demo", "demo-2")):
        code, out, _ = mintnet("demo", "--epochs", 1, "--json", f"{number}.json")
        assert code == 0 and Path("runs", name, "report.html").is_file() and "have 0.978" in out
        figures = json.loads(Path(f"{number}.json").read_text())
        assert 0 < figures["bits_per_dim"] < 8
        assert 0.9 < figures["pretrained"]["bits_per_dim"] < 1.0

"""Models to give away, and the one that the demo shows."""

import json
from pathlib import Path

import pytest
import torch

from mintnet.cli import demo
from mintnet.cli.output import console
from mintnet.data import mnist_slice
from mintnet.files import sha256
from mintnet.models import Classifier, Flow, MintNetConfig, storage


def a_flow(shape=(1, 28, 28)):
    torch.manual_seed(0)
    flow = Flow(MintNetConfig(shape, (1, 1), (3, 1)), 0.05)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return flow


def test_export_halves_the_file_and_keeps_the_model(mintnet):
    flow = a_flow()
    flow.save("model", preset="mnist", data={"name": "mnist", "folder": "/home/me/data"})
    code, out, err = mintnet("export", "model", "given", "--json", "facts.json")
    assert code == 0, err
    facts = json.loads(Path("facts.json").read_text())
    assert facts["sha256"] == sha256(Path("given/model.safetensors")) and facts["sha256"] in out
    sizes = [Path(name, "model.safetensors").stat().st_size for name in ("model", "given")]
    assert facts["bytes"] == sizes[1] < 0.65 * sizes[0]  # names of tensors are in both
    assert 0 < facts["rounding"] < 1e-3
    modes = {path.stat().st_mode for path in Path("given").iterdir()}
    assert len(modes) == 1  # who may read the one may read the other
    configs = [json.loads(Path(name, "config.json").read_text()) for name in ("model", "given")]
    assert configs[0]["data"].pop("folder") == "/home/me/data"  # nobody else's business
    assert configs[0] == configs[1]
    images = mnist_slice().images[:8]
    given = Flow.load("given")
    assert next(given.parameters()).dtype == torch.float32
    torch.testing.assert_close(
        given.bits_per_dim(images), flow.bits_per_dim(images), atol=5e-3, rtol=0
    )
    code, _, err = mintnet("export", "given", "again", "--precision", "kept")
    assert code == 0, err
    same = [Path(name, "model.safetensors").read_bytes() for name in ("given", "again")]
    assert same[0] == same[1]


def test_export_of_a_classifier(mintnet):
    Classifier.preset("digits").save("model")
    code, _, err = mintnet("export", "model", "given")
    assert code == 0, err
    Classifier.load("given")


def test_mistakes_in_export(mintnet):
    a_flow().save("model")
    Path("full").mkdir()
    Path("full/file").touch()
    code, _, err = mintnet("export", "model", "full")
    assert code == 1 and "not empty" in err and "Traceback" not in err
    code, _, err = mintnet("export", "nowhere", "out")
    assert code == 1 and "no model nowhere" in err
    flow = a_flow()
    with torch.no_grad():
        next(iter(flow.net.layers())).bias1.fill_(1e6)
    flow.save("large")
    code, _, err = mintnet("export", "large", "out")
    assert code == 1 and "bias1 reaches 1e+06, which half precision cannot hold" in err
    assert not Path("out/model.safetensors").exists()


@pytest.fixture
def shipped_mnist(tmp_path, monkeypatch):
    """A model in the place of the one that comes with the package."""
    a_flow().save(tmp_path / "mnist", preset="mnist", data={"name": "mnist"}, test_bits_per_dim=9.5)
    monkeypatch.setitem(storage.SHIPPED, "mnist", tmp_path / "mnist")


def test_the_demo_shows_the_shipped_model(tmp_path, shipped_mnist, capsys):
    figures = demo.show_pretrained(console(), tmp_path / "pictures")
    out = capsys.readouterr().out
    with torch.no_grad():  # as `mintnet evaluate` has it
        expected = Flow.from_pretrained("mnist").bits_per_dim(mnist_slice().images).mean()
    assert figures["bits_per_dim"] == pytest.approx(float(expected), rel=1e-5)
    assert f"{expected:.3f} ± {figures['standard_error']:.3f} bits per dimension" in out
    assert "the first 128 test images" in out and "all 10,000 have 9.5." in out
    assert "CC BY-SA 3.0" in out
    for name in ("mnist-samples.png", "mnist-interpolation.png"):
        assert (tmp_path / "pictures" / name).stat().st_size > 500


def test_some_images_of_mnist_need_no_files(mintnet, shipped_mnist):
    code, out, err = mintnet("reconstruct", "mnist", "-n", 2, "--solver", "wavefront")
    assert code == 0 and "2 of 2 images came back byte for byte" in out, err
    assert "128 images of MNIST's test set that ship with the package" in out
    code, out, err = mintnet("evaluate", "mnist", "--json", "e.json")
    assert code == 0 and "that ship with the package" in out and "on 128 test images" in out, err
    assert json.loads(Path("e.json").read_text())["data"] == "mnist-slice"


def test_the_parts_of_the_demo_are_numbered(mintnet, shipped_mnist, monkeypatch):
    monkeypatch.setattr(demo, "show_pretrained", lambda out, folder, seed: {"bits_per_dim": 1.0})
    monkeypatch.setattr(demo.Demo, "_train", lambda self, out: {"run": "run"})
    monkeypatch.setattr(demo.Demo, "_report", lambda self, out, run, figures: {"report": 1})
    code, out, err = mintnet("demo", "--json", "facts.json")
    assert code == 0, err
    heads = [line for line in out.splitlines() if line[1:2] == "."]
    assert [head[0] for head in heads] == list("123456") and "next" in heads[-1]
    assert "mintnet train folder --data PICTURES" in out
    assert "comes with the package" in heads[3]
    assert json.loads(Path("facts.json").read_text())["pretrained"] == {"bits_per_dim": 1.0}

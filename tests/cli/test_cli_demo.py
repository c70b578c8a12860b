"""The demo and its parts."""

import json
from pathlib import Path

import pytest

from mintnet.cli.demo import Demo, check_a_network, free_folder
from mintnet.cli.output import console
from mintnet.training import RunFolder
from mintnet.training.folder import FORMAT


def test_the_check(capsys):
    figures = check_a_network(console())
    assert figures["log_det_difference"] < 1e-9
    assert figures["round_trip_error"] < 1e-9
    assert "autograd" in capsys.readouterr().out


def write_run(folder: Path, step: int | None) -> None:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": FORMAT, "steps": 100}))
    if step is not None:
        RunFolder(folder).write_checkpoint({"step": step})


def test_a_finished_run_is_left_alone(tmp_path):
    demo = tmp_path / "demo"
    assert free_folder(demo) == demo
    write_run(demo, step=100)
    assert free_folder(demo) == tmp_path / "demo-2"
    write_run(tmp_path / "demo-2", step=100)
    assert free_folder(demo) == tmp_path / "demo-3"


def test_an_interrupted_run_goes_on(tmp_path):
    write_run(tmp_path / "demo", step=40)
    assert free_folder(tmp_path / "demo") == tmp_path / "demo"


@pytest.mark.parametrize("content", ["words", "{"])
def test_other_folders_are_left_alone(tmp_path, content):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "run.json").write_text(content)
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-2"
    (tmp_path / "demo-2").write_text("a file")
    assert free_folder(tmp_path / "demo") == tmp_path / "demo-3"


def test_the_report_shows_the_best_pictures_first(mintnet, tiny_flow):
    tiny_flow.save("run/last", preset="digits", data={"name": "digits"})
    Path("a.png").write_bytes(b"a picture")
    pictures = {"samples_picture": Path("a.png"), "interpolation_picture": Path("a.png")}
    given = {"baselines": {"one": 9.0, "two": 10.0}, "pretrained": pictures}
    figures = Demo()._report(console(), Path("run"), given)
    assert "bits below the better simple model" in figures["headlines"]
    page = Path("run/report.html").read_text()
    assert page.index("MNIST, drawn from the model") < page.index("<h2>Samples</h2>")


@pytest.mark.slow
def test_twice_in_a_row(mintnet):
    for number, name in enumerate(("demo", "demo-2")):
        code, out, _ = mintnet("demo", "--epochs", 1, "--json", f"{number}.json")
        assert code == 0
        page = Path("runs", name, "report.html").resolve()
        assert page.as_uri() in out.partition("What to try next")[2]
        assert "MNIST, drawn from the model" in page.read_text()
        figures = json.loads(Path(f"{number}.json").read_text())
        assert 0 < figures["bits_per_dim"] < 8
        assert 0.9 < figures["pretrained"]["bits_per_dim"] < 1.0
        assert "all 10,000 have 0.978" in out
        for picture in ("mnist-samples.png", "mnist-interpolation.png"):
            assert Path("runs", name, picture).is_file()
        assert set(figures["baselines"]) == {"Gaussian on the logits", "histogram of each pixel"}

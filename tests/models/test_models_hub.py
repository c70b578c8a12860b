"""Models of the hub: pushed, fetched, checked, and one clear line for what goes wrong."""

import json
from pathlib import Path

import pytest
import torch
from hub_server import Hub, served

from mintnet import Classifier, Flow
from mintnet.cli import main
from mintnet.models import storage
from mintnet.models.hub import fetch, is_hub_name
from mintnet.models.storage import ModelFileError, locate
from registry import tiny_flow

NAME = "someone/tiny-flow"


@pytest.fixture
def hub(monkeypatch, tmp_path: Path):
    constants = pytest.importorskip("huggingface_hub.constants")
    with served() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.chdir(tmp_path)
        yield server


@pytest.fixture
def pushed(hub: Hub) -> Flow:
    flow = tiny_flow(8, 0)
    flow.about = {"data": {"name": "digits", "folder": "/home/someone"}, "validation": 0.1}
    flow.push_to_hub(NAME, {"bits per dimension": 1.25})
    return flow


def test_what_is_pushed_comes_back(hub: Hub, pushed: Flow) -> None:
    files = hub.repositories[NAME]
    assert sorted(files) == ["README.md", "config.json", "model.safetensors", "samples.png"]
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: mintnet\n")
    assert "| bits per dimension | 1.25 |" in card
    assert f'mintnet.Flow.from_pretrained("{NAME}")' in card and "![16 samples]" in card
    config = json.loads(files["config.json"])
    assert config["data"] == {"name": "digits"} and config["validation"] == 0.1
    again = Flow.from_pretrained(NAME)
    assert again.about["validation"] == 0.1 and not again.training
    images = torch.randint(0, 17, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(again.log_prob(images), pushed.log_prob(images))
    count = len(hub.requests)
    assert fetch(NAME) == locate(NAME)
    assert not [r for r in hub.requests[count:] if r.startswith("GET")]  # from the cache


def test_without_a_network_the_cache_serves(hub, pushed, monkeypatch, raises_with) -> None:
    folder = fetch(NAME)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(NAME) == folder
    with raises_with(ModelFileError, "no model someone/other", "the hub cannot be reached"):
        fetch("someone/other")


FAULTS = {
    "other bytes": ("model.safetensors is not what the hub announced", "it was removed"),
    "breaks off": ("the download of someone/tiny-flow failed, try again",),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_download_is_refused_and_mended(hub, pushed, fault: str, raises_with) -> None:
    hub.fault = fault
    with raises_with(ModelFileError, *FAULTS[fault]):
        Flow.from_pretrained(NAME)
    hub.fault = ""
    assert Flow.from_pretrained(NAME).shape == pushed.shape


def test_mistakes_are_one_line(hub, pushed, monkeypatch, raises_with, capsys) -> None:
    with raises_with(ModelFileError, "no such model on the hub", "hf auth login"):
        Flow.from_pretrained("someone/nothing")
    with raises_with(ModelFileError, "expected classifier", "got flow"):
        Classifier.from_pretrained(NAME)
    hub.repositories["someone/else"] = {"config.json": b"{}"}
    with raises_with(ModelFileError, "someone/else on the hub is no model of mintnet: no model.s"):
        fetch("someone/else")
    hub.repositories["someone/broken"] = {"config.json": b"{", "model.safetensors": b"\x80\4"}
    with raises_with(ModelFileError, "config.json: Expecting property name"):
        Flow.from_pretrained("someone/broken")
    hub.fault = "may not write"
    with raises_with(ModelFileError, f"{NAME} could not be pushed to the hub", "403"):
        pushed.push_to_hub(NAME)
    with raises_with(ValueError, "called user/model; got 'tiny'"):
        pushed.push_to_hub("tiny")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with raises_with(ModelFileError, "pip install 'mintnet[hub]'", "someone/nothing"):
        fetch("someone/nothing")
    with raises_with(ModelFileError, "pip install 'mintnet[hub]'"):
        pushed.push_to_hub(NAME)
    with pytest.raises(SystemExit):
        main(["info", "someone/nothing"])
    assert "pip install 'mintnet[hub]'" in capsys.readouterr().err


def test_commands_take_models_of_the_hub(hub, pushed, tmp_path, capsys) -> None:
    main(["info", NAME])
    assert "flow" in capsys.readouterr().out
    main(["train", "digits", "--init", NAME, "--run", "run", "--max-steps", "1"])
    assert json.loads(Path("run/run.json").read_text())["recipe"]["init"] == NAME


def test_places_here_come_first(tmp_path: Path, monkeypatch, raises_with) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("runs/mnist")
    Path("runs").mkdir()
    assert not is_hub_name("runs/mnist") and not is_hub_name(tmp_path / "a")
    with raises_with(ModelFileError, "no model runs/mnist: expected a run folder"):
        locate("runs/mnist")
    tiny_flow(4, 0).save("user/model")
    assert storage.locate("user/model") == Path("user/model")

"""torch.compile, torch.export and ONNX: the same numbers as the model, with any batch size."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mintnet import Flow
from mintnet.cli import main
from mintnet.models import MintNetConfig, onnx
from mintnet.models.deep import DeepConfig
from registry import away_from_zero

SMALL = {
    "mint": lambda: Flow(MintNetConfig((1, 4, 4), (1, 1), (3, 2)), levels=17),
    "couplings": lambda: Flow(MintNetConfig((1, 4, 4), (1, 1), (3, 2), couplings=4)),
    "deep": lambda: Flow(DeepConfig((1, 4, 4), (1, 1), (3, 2), (1, 1), (3, 2)), None),
    "conditional": lambda: Flow(DeepConfig((1, 4, 4), (2,), (3,), (1,), (3,), 3), None),
}


def small(name: str) -> Flow:
    torch.manual_seed(0)
    return away_from_zero(SMALL[name](), 1, 0.5).eval()


def batch(flow: Flow, count: int) -> tuple[Tensor, ...]:
    images = torch.randint(0, flow.levels, (count, *flow.shape), dtype=torch.uint8)
    return (images, torch.arange(count) % flow.classes) if flow.classes else (images,)


class LogProb(nn.Module):
    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.flow.log_prob(images, labels=labels)


@pytest.mark.parametrize("name", ["mint", "deep", "conditional"])
def test_log_prob_is_compiled_as_one_graph(name: str) -> None:
    """fullgraph: no value is read on the way."""
    flow = small(name)
    module = LogProb(flow)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for count in (3, 2):
        given = batch(flow, count)
        assert torch.equal(compiled(*given), module(*given))


@pytest.mark.slow
def test_log_prob_is_compiled_by_inductor() -> None:
    flow = small("deep")
    images, _ = *batch(flow, 3), None
    found = torch.compile(flow.log_prob, fullgraph=True)(images)
    torch.testing.assert_close(found, flow.log_prob(images))


@pytest.mark.parametrize("name", ["mint", "couplings", "conditional"])
def test_log_prob_is_exported_for_any_batch_size(name: str) -> None:
    flow = small(name)
    module, size = LogProb(flow), torch.export.Dim("batch")
    given = batch(flow, 3)
    program = torch.export.export(module, given, dynamic_shapes=tuple({0: size} for _ in given))
    for count in (1, 5):
        given = batch(flow, count)
        torch.testing.assert_close(program.module()(*given), module(*given))


@pytest.mark.parametrize(
    "name", ["conditional", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mint", "deep"))]
)
def test_onnx_is_the_model(name: str, tmp_path: Path, monkeypatch, raises_with) -> None:
    runtime = pytest.importorskip("onnxruntime")
    flow, path = small(name), tmp_path / "new" / "model.onnx"
    errors = onnx.export_onnx(flow, path, batch(flow, 3)[0])
    assert max(errors.values()) < 1e-5 and [p.name for p in path.parent.iterdir()] == [path.name]
    images, *labels = batch(flow, 7)
    x = flow.dequantize(images)
    session = runtime.InferenceSession(path)
    inputs = dict(zip(("x", "labels"), (x.numpy(), *(t.numpy() for t in labels)), strict=False))
    log_prob, z = session.run(["log_prob", "z"], inputs)
    expected = flow.log_prob(images, labels=labels[0] if labels else None)
    torch.testing.assert_close(torch.from_numpy(log_prob), expected, rtol=1e-5, atol=1e-4)
    assert z.shape == (7, *(flow.net.output_shape or flow.shape))
    before = path.read_bytes()
    monkeypatch.setattr(onnx, "_errors", lambda *_: [1e-3, 0.0])
    with raises_with(ValueError, "onnxruntime and torch differ", "log_prob 1.0e-03"):
        onnx.export_onnx(flow, path, images[:2])
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1


def test_mistakes_of_the_command(tmp_path: Path, capsys, monkeypatch) -> None:
    small("mint").save(tmp_path / "model")
    for words, reason in {
        "mnist model.bin": "FILE is a .onnx file; got",
        "mnist-classifier c.onnx": "mnist-classifier is a classifier",
        "mnist m.onnx --count 0": "--count is at least 1",
        f"{tmp_path}/model m.onnx": "--data",
    }.items():
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit):
            main(["export", *words.split()])
        assert reason in capsys.readouterr().err
        assert not list(tmp_path.glob("*.onnx"))

"""Density models: presets, likelihoods, the authors' checkpoints, files, and what is refused."""

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mintnet import Classifier, FixedPoint, InversionError, MintNet, MixtureLayer, ResNet
from mintnet.models import Flow, MintNetConfig, ModelFileError, import_original
from mintnet.models import flow as flow_module
from mintnet.models.noise import uniform_noise
from mintnet.models.storage import packed_state
from registry import FIXTURES, away_from_zero, jacobian, tiny_flow

DENSITY = ("original_density_grey", "original_density_rgb", "trained_mnist")


def test_presets_are_those_of_the_paper() -> None:
    for name, count in (("mnist", 437_200), ("cifar10", 14_013_510), ("imagenet32", 14_013_510)):
        assert MintNet.preset(name).parameter_count() == count
    net = MintNet.preset("mnist")
    shapes = [(layer.event_shape, layer.filters) for layer in net.layers()]
    assert shapes == ([((1, 28, 28), 45)] * 12 + [((4, 14, 14), 11)] * 12 + [((16, 7, 7), 2)] * 16)
    assert net.output_shape == (16, 7, 7) and len(net.leaves()) == 42


@pytest.mark.parametrize("name", DENSITY)
@pytest.mark.parametrize(
    ("dtype", "z_error", "log_det_error"),
    [(torch.float64, 1e-9, 1e-9), (torch.float32, 1e-4, 1e-5)],
    ids=["float64", "float32"],
)
def test_outputs_of_the_authors_checkpoints(name, dtype, z_error, log_det_error) -> None:
    arrays = np.load(FIXTURES / f"{name}.npz")
    net = import_original(FIXTURES / f"{name}.pth").net.to(dtype)
    with torch.no_grad():
        z, log_det = net(torch.from_numpy(arrays["x"]).to(dtype))
    for found, name, error in ((z.flatten(1), "z", z_error), (log_det, "log_det", log_det_error)):
        gap = np.abs(found.double().numpy() - arrays[name]).max()
        assert gap <= error * np.abs(arrays[name]).max()


def test_lambda_of_imported_models(tmp_path: Path) -> None:
    grey = shutil.copy(FIXTURES / "original_density_grey.pth", tmp_path / "a.pth")
    colour = shutil.copy(FIXTURES / "original_density_rgb.pth", tmp_path / "b.pth")
    assert import_original(grey).pixels.lam == 1e-6
    assert import_original(grey, 0.03).pixels.lam == 0.03
    assert import_original(colour).pixels.lam == 0.05
    (tmp_path / "a.json").write_text('{"lambda_logit": 0.01}')
    assert import_original(grey).pixels.lam == 0.01
    assert all(layer.t_form == "absolute" for layer in import_original(grey).net.layers())


@pytest.mark.parametrize(
    ("couplings", "lam", "levels"), [(0, 0.05, 16), (3, 0.05, 17), (0, 1e-6, 256), (0, 0.2, 2)]
)
def test_log_density_by_change_of_variables(couplings: int, lam: float, levels: int) -> None:
    """The whole way from pixels to the likelihood against autograd's Jacobian, and by entries."""
    flow = Flow(MintNetConfig((1, 2, 4), (1, 1), (2, 1), couplings=couplings), lam, levels).double()
    away_from_zero(flow, 3, 1.2).eval()
    images = torch.randint(0, levels, (3, 1, 2, 4), dtype=torch.uint8)
    x = (images.double() + uniform_noise(5, 2, torch.arange(3), (1, 2, 4), torch.float64)) / levels

    def latent(x):
        return flow.net(flow.pixels(x)[0])[0]

    normal = torch.distributions.Normal(0.0, 1.0).log_prob(latent(x)).flatten(1).sum(1)
    expected = normal + torch.linalg.slogdet(jacobian(latent, x))[1] - 8 * np.log(levels)
    torch.testing.assert_close(flow.log_prob(images, seed=5, draw=2), expected)
    bits = flow.bits_per_dim(images, seed=5, draw=2)
    torch.testing.assert_close(bits, -expected / (8 * np.log(2)))
    entries = flow.log_prob_map(images, seed=5, draw=2)
    assert entries.shape == images.shape
    torch.testing.assert_close(entries.sum((1, 2, 3)), expected)


@pytest.mark.parametrize("couplings", [0, 3])
def test_save_and_load(tmp_path: Path, couplings: int) -> None:
    config = MintNetConfig((1, 4, 4), (1, 1), (3, 2), "tanh", 5, couplings=couplings)
    flow = Flow(config, 0.02, 17)
    away_from_zero(flow, 2)
    flow.save(tmp_path / "model", note="kept")
    again = Flow.load(tmp_path / "model")
    assert again.net.config == flow.net.config
    assert (again.pixels.lam, again.levels) == (0.02, 17)
    images = torch.randint(0, 17, (2, 1, 4, 4), dtype=torch.uint8)
    assert torch.equal(again.log_prob(images), flow.log_prob(images))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["note"] == "kept"
    names = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert names == ["config.json", "model.safetensors"]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Flow(MintNetConfig((1, 4, 4), (1,), (2,))).save(tmp_path / "model")
    return tmp_path / "model"


def _net(**changes: object) -> dict[str, object]:
    return {"shape": [1, 4, 4], "pairs": [1], "filters": [2], **changes}


def test_damaged_model_folders(saved: Path, raises_with) -> None:
    whole = {path.name: path.read_bytes() for path in saved.iterdir()}
    flow = Flow.load(saved)
    with torch.no_grad():
        flow.net.layers()[0].bias3.fill_(float("nan"))
    flow.save(saved.parent / "nan")
    for folder, words in ((saved.parent / "nan", "NaN or infinite"), (saved / "x", "no model")):
        with raises_with(ModelFileError, words, folder):
            Flow.load(folder)
    weights = whole["model.safetensors"]
    for file, content, words in (
        ("model.safetensors", weights[: len(weights) // 2], "model.safetensors is damaged"),
        ("model.safetensors", None, "model.safetensors: cannot be read (No such file"),
        ("config.json", b"{", "config.json: Expecting property name"),
        ("config.json", None, "no config.json"),
    ):
        for name, data in (whole | {file: content}).items():
            (saved / name).unlink(missing_ok=True)
            if data is not None:
                (saved / name).write_bytes(data)
        with raises_with(ModelFileError, words):
            Flow.load(saved)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "classifier"}, "kind: expected flow"),
        ({"format": 99}, "format: expected 1; got 99"),
        ({"net": _net(pairs=[2])}, "tensors differ in name"),
        ({"net": _net(filters=[3])}, "does not fit config.json"),
        ({"net": None}, "net: expected an object"),
        ({"levels": None}, "levels"),
        ({"net": {"shape": [1, 4, 4], "colour": 3}}, "colour"),
        ({"net": [1, 2]}, "net: expected an object"),
        ({"net": _net(pairs=[1, 1], filters=[2, 1], couplings=-1)}, "couplings"),
        ({"net": _net(pairs=[1, 1], filters=[2, 1], couplings=True)}, "couplings"),
        ({"net": _net(couplings=3)}, "couplings stand after squeezes"),
        ({"logit_lambda": "small"}, "logit_lambda: expected a finite number or nothing"),
        ({"logit_lambda": 0.7}, "0.7"),
        ({"centre": "black"}, "black"),
        ({"centre": float("nan")}, "nan"),
    ],
    ids=str,
)
def test_configurations_that_say_something_else(saved: Path, raises_with, changes, words) -> None:
    path = saved / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    with raises_with(ModelFileError, words):
        Flow.load(saved)


def test_couplings_stand_after_squeezes_and_are_counted() -> None:
    plain = MintNetConfig((1, 8, 8), pairs=(1, 1, 1), filters=(3, 2, 1))
    net, without = MintNet(replace(plain, couplings=5)), MintNet(plain)
    names = [type(part).__name__ for part in net.chain.leaves()]
    stage = ["Squeeze", "RealNVPCoupling", "RealNVPCoupling", "MintLayer", "MintLayer"]
    assert names == ["MintLayer", "MintLayer", *stage, *stage]
    own = sum((9 * c + 1) * 5 + 30 + 2 * c * (9 * 5 + 1) + c for c in (2, 2, 8, 8))
    assert net.parameter_count() == without.parameter_count() + own
    for part in (net.chain.leaves()[k] for k in (3, 4, 8, 9)):  # fresh ones are the identity
        y = torch.randn(2, *part.event_shape)
        assert torch.equal(part(y)[0], y) and part.certify().onto


def test_the_centre_of_the_logit_is_kept(tmp_path: Path) -> None:
    config, images = MintNetConfig((1, 4, 4), (1,), (2,)), torch.zeros(3, 1, 4, 4).byte()
    flow, plain = Flow(config, 1e-6, centre=-6.5).eval(), Flow(config, 1e-6)
    flow.save(tmp_path)
    again = Flow.load(tmp_path)
    plain.load_state_dict(flow.state_dict())
    bits = flow.bits_per_dim(images)
    assert torch.equal(again.bits_per_dim(images), bits)
    assert (plain.bits_per_dim(images) - bits).abs().min() > 0.1
    assert torch.equal(again.decode(again.encode(images)), images)
    # Black is where zeros are: an image of it, and one that is cut, look the same at the border.
    assert abs(float(flow.pixels.transform(flow.dequantize(images))[0].mean())) < 0.5


class _Malicious:
    def __reduce__(self):  # type: ignore[no-untyped-def]
        return (Path.touch, (Path("owned"),))


def _state() -> dict[str, torch.Tensor]:
    return torch.load(FIXTURES / "original_density_grey.pth", weights_only=True)[0]


def _without(name: str) -> dict[str, torch.Tensor]:
    return {k: v for k, v in _state().items() if name not in k}


def _changed(change, chosen=lambda name: True) -> list[dict[str, torch.Tensor]]:
    return [{k: change(v) if chosen(k) else v for k, v in _state().items()}]


def _ends(end: str):
    return lambda name: name.endswith(end)


FILES = {
    "missing bias": (lambda: [_without("layers.0.0.bias2")], "layers.0.0.bias2 is missing"),
    "renamed": (
        lambda: [{k.replace("layers", "blocks"): v for k, v in _state().items()}],
        "no layers.N.M.weight1",
    ),
    "no state": (lambda: [3], "no state_dict"),
    "empty list": (lambda: [], "no state_dict"),
    "empty state": (lambda: [{}], "no layers.N.M.weight1"),
    "wrong shape": (lambda: _changed(lambda v: v[:1], _ends("0.0.weight2")), "weight2"),
    "wrong t": (lambda: _changed(lambda v: v[..., :1], _ends("0.1.t")), "t of upper MintLayer"),
    "malicious": (lambda: [_Malicious()], "is not a readable checkpoint"),
    "values that are no tensors": (lambda: _changed(lambda v: 3), "numbers; got int"),
    "flat t": (lambda: _changed(torch.flatten, _ends(".t")), "expected a tensor of 4 axes"),
    "NaN": (lambda: _changed(lambda v: v * float("nan"), _ends("bias1")), "expected finite"),
    "even kernels": (
        lambda: _changed(lambda v: v[..., :2, :2], lambda name: "weight" in name),
        "kernel_size",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_checkpoints_that_are_something_else(name, tmp_path, raises_with, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, words = FILES[name]
    torch.save(make(), tmp_path / "a.pth")
    with raises_with(ModelFileError, "a.pth", words):
        import_original(tmp_path / "a.pth")
    assert not (tmp_path / "owned").exists()


def test_other_files_instead_of_checkpoints(tmp_path: Path, raises_with) -> None:
    with raises_with(ModelFileError, "none.pth: cannot be read (No such file"):
        import_original(tmp_path / "none.pth")
    whole = (FIXTURES / "original_density_grey.pth").read_bytes()
    noise = bytes(np.random.default_rng(0).integers(0, 256, 4000, dtype=np.uint8))
    cut, image = whole[: len(whole) // 3], b"\x89PNG\r\n\x1a\n" + bytes(100)
    for data in (b"", cut, pickle.dumps(_Malicious()), noise, b'{"a": 1}', image, b"hello\n" * 20):
        (tmp_path / "a.pth").write_bytes(data)
        with raises_with(ModelFileError, "a.pth"):
            import_original(tmp_path / "a.pth")
    beside = shutil.copy(FIXTURES / "original_density_grey.pth", tmp_path / "b.pth")
    for text in ("not json", "[1]"):
        (tmp_path / "b.json").write_text(text)
        with raises_with(ModelFileError, "b.json"):
            import_original(beside)
    with raises_with(ValueError, "classifier", "no logit"):
        import_original(FIXTURES / "original_classifier.pth", logit_lambda=0.1)


def test_any_number_of_samples_is_solved_in_batches() -> None:
    flow, told = tiny_flow(4, 1), []
    whole = flow.sample(7, seed=3)
    batches = flow.sample(7, seed=np.int64(3), batch_size=2, progress=lambda *now: told.append(now))
    assert torch.equal(whole, batches)
    layers = len(flow.net.layers())
    assert told == [(k, 4 * layers) for k in range(1, 4 * layers + 1)]
    z = flow.sample_latents(7, seed=3)
    one, many = flow.solve(z), flow.solve(z, FixedPoint(max_steps=300), batch_size=3)
    assert many.status.shape == (7,) and len(many.parts) == len(one.parts)
    assert many.parts[0].value.shape == one.parts[0].value.shape
    torch.testing.assert_close(many.value, one.value, rtol=1e-4, atol=1e-4)


def test_large_inputs_are_split_and_the_answer_is_the_same(monkeypatch) -> None:
    flow = tiny_flow(4, 1)
    images = torch.randint(0, 17, (9, 1, 4, 4), dtype=torch.uint8)
    index = torch.arange(9).flip(0)
    before = flow.log_prob(images, 1, 2, index), flow.encode(images)
    assert flow.batch_size > 1000
    monkeypatch.setitem(flow_module.AT_ONCE, "cpu", 2 * 3 * 16)
    assert flow.batch_size == 2
    torch.testing.assert_close(flow.log_prob(images, 1, 2, index), before[0])
    torch.testing.assert_close(flow.encode(images), before[1])
    assert torch.equal(flow.decode(before[1].detach()), images)


def test_what_a_density_model_refuses(raises_with) -> None:
    flow = tiny_flow(4, 1)
    z, images = flow.sample_latents(2), torch.zeros(2, 1, 4, 4)
    for ask, *words in (
        (lambda: flow.sample(0), "count: expected a whole number from 1", 0),
        (lambda: flow.sample(2, temperature=0.0), "temperature", 0.0),
        (lambda: flow.sample(2, seed=2**64), "seed", 2**64),
        (lambda: flow.sample(2, batch_size=0), "batch_size", 0),
        (lambda: flow.sample(2, seed=0.9), "seed: expected a whole number", 0.9),
        (lambda: flow.sample(True), "count", True),
        (lambda: flow.bits_per_dim(images.byte(), seed=0.9), "seed", 0.9),
        (lambda: flow.bits_per_dim(images.byte(), draw=1.5), "draw", 1.5),
        (lambda: flow.bits_per_dim(images.byte(), draws=True), "draws", True),
        (lambda: flow.bits_per_dim(images.byte(), index=z[0, 0, 0].long()[:1]), "index", "(2,)"),
        (lambda: flow.bits_per_dim(images.byte(), index=torch.ones(2)), "index", "float32"),
        (lambda: flow.log_density(images - 3), "[-0.0555556, 1.05556]", -3),
        (lambda: flow.log_density(images * float("nan")), "finite"),
        (lambda: tiny_flow(4, 1).half().bits_per_dim(images.byte()), "float32", "float16"),
        (lambda: tiny_flow(4, 1).bfloat16().log_density(images.bfloat16()), "flow.float()"),
        (lambda: tiny_flow(4, 1).half().net(images.half()), "float32 or float64", "float16"),
        (lambda: tiny_flow(4, 1).log_density(images.double()), "float32", "float64"),
        (lambda: flow.decode(z, "auto", progress=print), "solver", "'auto'"),
        (lambda: flow.decode(z.flatten(1)), "(batch, 4, 2, 2)"),
        (lambda: flow.log_prob(images), "uint8", "float32"),
        (lambda: flow.encode(images[:, 0].byte()), "(batch, 1, 4, 4)", "(2, 4, 4)"),
        (lambda: flow.log_prob(images.byte() + 17), "17 grey levels", "17"),
        (lambda: Flow.preset("svhn"), "'svhn'", "digits, mnist"),
        (lambda: Flow(MintNetConfig((1, 4, 4), (1,), (2,)), levels=1), "levels", "1"),
        (lambda: MintNetConfig((1, 4, 4), (1, 1), (2,)), "pairs and filters", "2 and 1"),
    ):
        with raises_with(ValueError, *words):
            ask()
    with raises_with(TypeError, "tensor", "ndarray", "torch.from_numpy"):
        flow.log_prob(images.numpy())
    with pytest.raises(InversionError):
        flow.sample(3, seed=0, solver=FixedPoint(max_steps=1))


def test_likelihoods_that_are_not_finite_are_refused(raises_with) -> None:
    flow, images = tiny_flow(4, 1), torch.zeros(2, 1, 4, 4)
    flow.net.layers()[0].bias3.data.fill_(3e38)
    for ask in (lambda: flow.bits_per_dim(images.byte()), lambda: flow.log_density(images + 0.5)):
        with raises_with(ValueError, "NaN or infinite numbers for 2 of 2 samples"):
            ask()


def test_likelihoods_are_in_float32_under_autocast() -> None:
    flow, images = tiny_flow(4, 1), torch.zeros(2, 1, 4, 4)
    x, layer = flow.dequantize(images.byte()), MixtureLayer(1, 2, (4, 4))
    functions = (flow.log_density, lambda x: flow.net(x)[1], lambda x: flow.bits_per_dim(x.byte()))
    functions += (lambda x: layer(x)[1],)
    for function in functions:
        with torch.autocast("cpu", torch.bfloat16):
            found = function(x)
        assert found.dtype == torch.float32 and torch.equal(found, function(x))


@pytest.mark.parametrize(
    "net",
    [
        {"shape": [1, 2**40, 2**40]},
        {"filters": [15_000]},
        {"filters": [60]},
        {"pairs": [10**8]},
        {"kernel_size": 10**400},
        {"filters": [True]},
    ],
    ids=str,
)
def test_absurd_networks_are_refused_before_memory_is_taken(saved, raises_with, net) -> None:
    path = saved / "config.json"
    config = json.loads(path.read_text())
    config["net"] |= net
    path.write_text(json.dumps(config))
    with raises_with(ModelFileError, "config.json: net", "expected"):
        Flow.load(saved)


@pytest.mark.parametrize("kind", ["int", "bool", "float8", "complex"])
def test_tensors_of_other_kinds_are_refused(saved, raises_with, kind) -> None:
    dtype = {"int": torch.int32, "bool": torch.bool, "float8": torch.float8_e4m3fn}
    path = saved / "model.safetensors"
    state = load_file(path)
    name = "net.chain.parts.0.parts.0.bias1"
    state[name] = state[name].to(dtype.get(kind, torch.complex64))
    save_file(state, path)
    with raises_with(ModelFileError, f"{name}: expected F16 or BF16 or F32 or F64 of shape [2]"):
        Flow.load(saved)


BOUNDED = {
    "mnist": lambda: Flow.preset("mnist").net,
    "couplings": lambda: MintNet(MintNetConfig((3, 8, 8), (1, 1), (5, 2), couplings=40)),
    "mnist-deep": lambda: Flow.preset("mnist-deep").net,
    "classifier": lambda: Classifier.preset("mnist"),
    "resnet": lambda: ResNet.preset("mnist"),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_lower_bounds_of_weights(name: str) -> None:
    net = BOUNDED[name]()
    stored = sum(tensor.numel() for tensor in packed_state(net).values())
    assert stored / 8 < net.config.least_weights() <= stored

"""The step that is recorded on a GPU does what the plain step does; here without a recording."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from mintnet.data import load
from mintnet.models import Flow
from mintnet.models.noise import uniform_noise
from mintnet.training import Cadence, train
from mintnet.training.build import build_classifier, build_flow
from mintnet.training.classification import ClassificationTask
from mintnet.training.devices import Devices
from mintnet.training.fast import chosen_precision, fast_path
from mintnet.training.module import TrainingModule
from mintnet.training.plan import Plan
from mintnet.training.recorded import RecordedStep
from mintnet.training.schedule import learning_rate
from mintnet.training.task import Batch, DensityTask, FastPath
from mintnet.training.usual import UsualLoss

OPTIONS = {
    "pairs": (1,),
    "filters": (3,),
    "batch_size": 32,
    "max_steps": 4,
    "ema": 0.5,
    "clip": 50.0,
    "augmentation": "flip",
    "accumulate": 2,
}


def _module(muon: bool = False) -> tuple[TrainingModule, RecordedStep]:
    plan = Plan.of("digits", muon=muon, **OPTIONS)
    data = load("digits", "train")
    flow = build_flow("digits", data, plan.seed, plan.pairs, plan.filters, None)
    task = DensityTask(flow)
    task.fast = FastPath(torch.float32, compiled=False)
    module = TrainingModule(task, data, plan)
    return module, RecordedStep(module, module.configure_optimizers(), record=False)


@pytest.mark.parametrize("muon", [False, True])
def test_it_trains_like_the_plain_step(tmp_path: Path, muon: bool) -> None:
    figures = train("digits", tmp_path / "run", cadence=Cadence(samples=0), muon=muon, **OPTIONS)
    module, step = _module(muon)
    for places in module.train_dataloader():
        rate = learning_rate(module.plan.recipe, module.step, module.total)
        *_, norm, counts, finite = step(places, rate).tolist()
        module.step += 1
        assert finite == 1 and counts == 1 and norm > 0
    assert figures["steps"] == module.step == 4
    plain = Flow.load(tmp_path / "run").state_dict()
    with module.average.applied(module.model):
        module.task.save(tmp_path / "recorded")  # without masked entries, as the other
    for name, tensor in Flow.load(tmp_path / "recorded").state_dict().items():
        assert torch.allclose(tensor, plain[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("muon", [False, True])
def test_the_step_can_be_recorded(recordable, muon: bool) -> None:  # type: ignore[no-untyped-def]
    module, step = _module(muon)
    step(next(iter(module.train_dataloader())), 1e-3)
    with recordable():
        *_, norm, _, finite = step._run().unbind()
    assert float(norm) > 0 and float(finite) == 1


def test_what_is_put_back_keeps_no_graph_of_the_parameters_alive() -> None:
    _, step = _module()
    assert not any(tensor.requires_grad for tensor in step._state())


def test_the_check_of_recordings_sees_what_cannot_be_recorded(recordable) -> None:  # type: ignore[no-untyped-def]
    place = torch.zeros(3, 3)

    def assign() -> None:
        place[1, 1] = 1.0

    for wrong in (assign, lambda: torch.tensor([1, 2]), lambda: place.sum().item()):
        with pytest.raises(AssertionError), recordable():
            wrong()


def test_a_step_that_is_not_finite_leaves_the_weights(tmp_path: Path) -> None:
    module, step = _module()
    batches = list(module.train_dataloader())
    step(batches[0], 1e-3)
    with torch.no_grad():
        next(iter(module.model.parameters())).fill_(math.inf)
    before = {name: t.clone() for name, t in module.model.state_dict().items()}
    loss, *_, norm, counts, finite = step(batches[1], 1e-3).tolist()
    assert counts == 0 and not (math.isfinite(loss) and math.isfinite(norm)) and finite == 0
    for name, tensor in module.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_a_step_far_out_is_left_out_as_the_plain_one_is() -> None:
    module, step = _module()
    batches = list(module.train_dataloader())
    loss = float(step(batches[0], 1e-3)[0]) / module.batch
    before = {name: t.clone() for name, t in module.model.state_dict().items()}
    for bound, same in ((loss / 2, True), (loss * 2, False)):
        module.usual = UsualLoss(mean=bound, deviation=0.0, seen=50)
        *_, counts, finite = step(batches[1], 1e-3).tolist()
        assert finite == 1 and counts == (not same)
        found = module.model.state_dict()
        assert all(torch.equal(found[name], t) for name, t in before.items()) == same


def test_noise_takes_its_draw_from_a_tensor() -> None:
    index = torch.tensor([5, 2**40])
    plain = uniform_noise(7, 3, index, (2, 4))
    assert torch.equal(plain, uniform_noise(7, torch.tensor(3), index, (2, 4)))
    assert not torch.equal(plain, uniform_noise(7, torch.tensor(4), index, (2, 4)))


def test_without_a_gpu_the_plain_path_is_taken_and_said_so() -> None:
    here = Devices(accelerator="cpu")
    assert chosen_precision(here) == "float32"
    path, reason = fast_path(DensityTask(Flow.preset("digits")), "bf16", here)
    assert path is None and "no GPU" in reason


@pytest.mark.parametrize(
    ("precision", "compiler", "said"),
    [
        ("float32", True, "compiled kernels"),
        ("float32", False, "no C++ compiler"),
        ("float64", True, "none are compiled in float64"),
    ],
)
def test_compiling_is_for_those_who_ask(
    monkeypatch: pytest.MonkeyPatch, precision: str, compiler: bool, said: str
) -> None:
    monkeypatch.setattr("mintnet.training.fast.has_compiler", lambda: compiler)
    here = Devices(accelerator="cpu", compile=True)
    path, reason = fast_path(DensityTask(Flow.preset("digits")), precision, here)
    assert said in reason and (path is not None) == (said == "compiled kernels")


def test_a_run_with_the_kernels_that_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights as those of the plain path; not compiled here, which takes minutes."""
    found = []
    for name, path in (("plain", None), ("fast", FastPath(torch.float32, compiled=False))):
        monkeypatch.setattr("mintnet.training.loop.fast_path", lambda *_, path=path: (path, ""))
        train("digits", tmp_path / name, cadence=Cadence(samples=0), **OPTIONS)
        found.append(Flow.load(tmp_path / name).state_dict())
    for name, tensor in found[1].items():
        assert torch.allclose(tensor, found[0][name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize(
    ("kind", "precision", "fast", "said"),
    [
        ("elu", "bf16", True, "fast kernels in bf16"),
        ("elu", "float64", True, "no float64"),
        ("elu", "bf16", False, "as asked"),
        ("tanh", "bf16", True, "knows elu alone"),
    ],
)
def test_the_path_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, kind: str, precision: str, fast: bool, said: str
) -> None:
    from mintnet.models import MintNetConfig

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    flow = Flow(MintNetConfig((1, 4, 4), pairs=(1,), filters=(2,), activation=kind))
    path, reason = fast_path(DensityTask(flow), precision, Devices(fast=fast))
    assert said in reason
    assert (path is not None) == (said == "fast kernels in bf16")


@pytest.mark.parametrize(
    ("triton", "capability", "compilers", "said"),
    [
        (False, (9, 0), "gcc", "Triton is not installed"),
        (True, (6, 1), "gcc", "too old for Triton"),
        (True, (7, 5), "", "no C compiler"),
        (True, (7, 5), "clang", ""),
    ],
)
def test_what_cannot_be_compiled_on_a_gpu_is_not(
    monkeypatch: pytest.MonkeyPatch,
    triton: bool,
    capability: tuple[int, int],
    compilers: str,
    said: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr("mintnet.training.fast.HAS_TRITON", triton)
    monkeypatch.setattr("shutil.which", lambda name: name if name in compilers.split() else None)
    monkeypatch.delenv("CC", raising=False)
    path, reason = fast_path(DensityTask(Flow.preset("digits")), "float32", Devices())
    assert path == FastPath(torch.float32, compiled=not said)
    assert said in reason and ("not compiled" in reason) == bool(said) and "\n" not in reason


def test_old_gpus_have_no_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert chosen_precision(Devices()) == "float32"
    path, reason = fast_path(DensityTask(Flow.preset("digits")), "bf16", Devices())
    assert path is None and "no bf16" in reason


def test_more_pieces_than_images_are_as_many_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "accumulate", 40)
    module, step = _module()
    sizes, measure = [], module.task.measure

    def measured(batch: Batch) -> dict[str, torch.Tensor]:
        sizes.append(len(batch.images))
        return measure(batch)

    monkeypatch.setattr(module.task, "measure", measured)
    *_, finite = step(next(iter(module.train_dataloader())), 1e-3).tolist()
    assert finite == 1 and sizes == 32 * [1]


@pytest.mark.parametrize(
    ("far", "muon"), [(math.inf, False), (math.nan, False), (1.0, False), (math.nan, True)]
)
def test_a_step_left_out_of_a_classifier_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, far: float, muon: bool
) -> None:
    """Weights, statistics of batch normalization, moments, their counters and the average."""
    shape = {"pairs": (1, 1), "filters": (3, 1), "batch_size": 32}
    plan = Plan.of("digits-classifier", ema=0.5, muon=muon, weight_decay=0.0, **shape)
    data = load("digits", "train")
    model = build_classifier("digits-classifier", data, 0, plan.pairs, plan.filters)
    task = ClassificationTask(model)
    task.fast = FastPath(torch.float32, compiled=False)
    module = TrainingModule(task, data, plan)
    step = RecordedStep(module, module.configure_optimizers(), record=False)
    batches = list(module.train_dataloader())
    step(batches[0], 1e-3)
    before = [tensor.clone() for tensor in step._state()]
    prepared, measure = model.prepared, task.measure
    monkeypatch.setattr(model, "prepared", lambda images: prepared(images) * far)

    def measured(batch: Batch) -> dict[str, torch.Tensor]:
        found = measure(batch)  # if far is 1, activations are finite and the loss alone is not
        return {**found, "loss": found["loss"] * math.inf}

    monkeypatch.setattr(task, "measure", measured)
    loss, *_, finite = step(batches[1], 1e-3).tolist()
    assert not math.isfinite(loss) and finite == 1
    for tensor, value in zip(step._state(), before, strict=True):
        assert torch.equal(tensor, value)


def test_plain_and_compile_contradict_each_other() -> None:
    with pytest.raises(ValueError, match="--plain and --compile contradict"):
        Devices(fast=False, compile=True)

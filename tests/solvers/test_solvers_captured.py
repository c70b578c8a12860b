"""Recorded solves, with functions in the place of recordings: what a GPU does, on any machine."""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable

import pytest
import torch

from mintnet import Chain, FixedPoint, MintLayer, Squeeze
from mintnet.solvers import captured
from mintnet.solvers.captured import CapturedSolve, solve_captured
from mintnet.solvers.replay import ForwardGraph, Gate, Recorder, replayed
from registry import HARD, trained_layer


def _layer() -> MintLayer:
    torch.manual_seed(0)
    layer = MintLayer(2, 4, (6, 5))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.eval()


def _targets(layer: MintLayer, count: int = 33) -> torch.Tensor:
    # some hard ones, which take their time, and many easy ones: large x are near where steps begin
    sizes = torch.logspace(-3, 1.5, count)
    sizes[count // 4 :] = 30.0
    return layer(sizes[:, None, None, None] * torch.randn(count, 2, 6, 5))[0].detach()


@torch.no_grad()
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize(
    ("tolerance", "max_steps"), [(None, 120), (1e-4, 120), (0.0, 9), (None, 4)]
)
def test_recorded_solves_are_plain_solves(
    monkeypatch: pytest.MonkeyPatch,
    slow: bool,
    watch: bool,
    tolerance: float | None,
    max_steps: int,
) -> None:
    monkeypatch.setattr(captured, "SLOW", 0.0 if slow else 1e9)
    monkeypatch.setattr(captured, "FEWEST", 2)
    layer = _layer()
    z = _targets(layer)
    scale = z.abs().flatten(1).amax(1)
    solver = FixedPoint(tolerance=tolerance, max_steps=max_steps, watch=watch)
    system = layer.system()
    plain = solver._solve(system, z, scale)
    for _ in range(3):  # later calls look less often at what is left
        found = solve_captured(system, z, scale, solver._iteration(layer.name), max_steps)
        assert found is not None
        assert torch.equal(found.converged, plain.converged)
        assert torch.equal(found.status, plain.status)
        if tolerance is None:  # later calls may take a step more, which changes no count
            assert torch.equal(found.steps, plain.steps)
        ok = plain.converged
        if ok.any() and not tolerance:
            apart = (found.value[ok] - plain.value[ok]).abs().max()
            assert apart < 1e-4 * plain.value[ok].abs().max()
        assert (
            found.residual[ok] <= plain.residual[ok].clamp(min=max(5e-6, tolerance or 0.0))
        ).all()
    graphs = system.memory["captured"].values()
    sizes = {len(graph.z) for graph in graphs if isinstance(graph, CapturedSolve)}
    if not slow or tolerance == 0:
        assert sizes == {33}
    elif (tolerance, max_steps) == (None, 120):
        assert len(sizes) > 1


@torch.no_grad()
@pytest.mark.parametrize("index", HARD)
def test_recorded_steps_watch_as_plain_ones_do(index: int) -> None:
    """Braking needs the last point: a recording that forgets it never ends in these layers."""
    layer = trained_layer(index, (12, 12)).float()
    generator = torch.Generator().manual_seed(0)
    z = layer(60 * torch.rand(6, 1, 12, 12, generator=generator) - 30)[0].detach()
    scale = z.abs().flatten(1).amax(1)
    for solver in (FixedPoint(watch=True), FixedPoint(step=2 / 3, watch=True)):
        plain = solver._solve(layer.system(), z, scale)
        found = solve_captured(layer.system(), z, scale, solver._iteration("layer"), 120)
        assert found is not None and bool(plain.converged.all())
        assert torch.equal(found.status, plain.status)
        assert (found.steps - plain.steps).abs().max() <= 1  # batches of other sizes round anew


def test_a_recording_has_the_gate_to_itself() -> None:
    gate, told = Gate(), queue.Queue[str]()
    inside, leave, recorded = (threading.Event() for _ in range(3))

    def solve(name: str, wait: bool) -> None:
        with gate.passing(), gate.passing():  # solves are nested
            told.put(f"{name} in")
            inside.set()
            assert not wait or leave.wait(10)
            with gate.passing():  # also once another thread waits to record
                told.put(f"{name} out")

    def record() -> None:
        with gate.passing(), gate.by_itself():
            told.put("recording")
            assert not recorded.wait(0.2)  # time for others to get in, if they could
            told.put("recorded")

    threads = [threading.Thread(target=solve, args=("first", True))]
    threads[0].start()
    assert inside.wait(10)
    threads += [threading.Thread(target=record)]
    threads[1].start()
    while gate._recording is None:
        time.sleep(0.001)
    threads += [threading.Thread(target=solve, args=("second", False))]
    threads[2].start()
    time.sleep(0.05)
    leave.set()
    for thread in threads:
        thread.join(10)
    order = [told.get_nowait() for _ in range(6)]
    assert order == ["first in", "first out", "recording", "recorded", "second in", "second out"]


def test_a_recording_that_is_interrupted_while_it_waits_leaves_the_gate_open() -> None:
    gate = Gate()

    def interrupted(predicate: Callable[[], bool]) -> bool:
        del gate._changed.wait_for  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    gate._changed.wait_for = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(KeyboardInterrupt), gate.by_itself():
        pass
    passed = threading.Event()

    def solve() -> None:
        with gate.passing():
            passed.set()

    threading.Thread(target=solve, daemon=True).start()
    assert passed.wait(10)


@torch.no_grad()
def test_a_recorded_solve_sees_weights_that_change(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, solver = _layer(), FixedPoint()
    z = _targets(layer, 5)
    scale = z.abs().flatten(1).amax(1)

    def solve() -> torch.Tensor:
        found = solve_captured(layer.system(), z, scale, solver._iteration("layer"), 120)
        assert found is not None and bool(found.converged.all())
        assert ((layer(found.value)[0] - z).abs().flatten(1).amax(1) < 1e-5 * scale).all()
        return found.value

    first = solve()
    layer.weight1.data.mul_(0.5)  # in place, seen by the graph
    second = solve()
    layer.weight3.data = layer.weight3.data * 0.5  # elsewhere: another graph
    third = solve()
    assert (first - second).abs().max() > 1e-3 and (second - third).abs().max() > 1e-3


@torch.no_grad()
def test_a_forward_pass_is_recorded_when_it_comes_again() -> None:
    chain = Chain(MintLayer(1, 3, (4, 4)), Squeeze(2, (1, 4, 4)), MintLayer(4, 2, (2, 2)))
    for parameter in chain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    memory: dict[object, object] = {}

    def check(count: int) -> None:
        x = torch.randn(count, 1, 4, 4)
        weights = (*chain.parameters(), *chain.buffers())
        found = replayed(memory, chain.value, x, weights)
        assert torch.equal(found, chain.value(x))
        assert torch.allclose(found, chain(x)[0], atol=1e-6)

    for count in (3, 3, 3, 5, 5, 3):
        check(count)
    graphs = memory["forward"]
    assert [type(graph) for graph in graphs.values()] == [ForwardGraph] * 2  # type: ignore[attr-defined]
    next(iter(chain.parameters())).data.add_(1.0)
    check(3)
    parameter = next(iter(chain.parameters()))
    parameter.data = parameter.data + 1.0
    check(3)
    assert list(memory["forward"].values()) == ["seen"]  # type: ignore[attr-defined]


@torch.no_grad()
def test_large_inputs_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    memory: dict[object, object] = {}
    for _ in range(3):
        replayed(memory, torch.sin, torch.zeros(2**20 + 1), ())
    assert not memory


@torch.no_grad()
@pytest.mark.parametrize("part", ["step", "forward"])
def test_a_lack_of_memory_is_not_remembered(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    layer, memory = _layer(), {}
    z = _targets(layer, 4)
    refuse = True

    def record(self: Recorder, function: Callable[[], object]) -> Callable[[], object]:
        if refuse:
            raise torch.OutOfMemoryError("no room")
        function()
        return function

    def attempt() -> bool:
        if part == "step":
            arguments = (z.abs().flatten(1).amax(1), FixedPoint()._iteration("layer"), 120)
            return solve_captured(layer.system(), z, *arguments) is not None
        assert replayed(memory, layer.value, z, ()).shape == z.shape
        return isinstance(next(iter(memory["forward"].values())), ForwardGraph)

    monkeypatch.setattr(Recorder, "record", record)
    assert [attempt() for _ in range(3)] == [False] * 3
    refuse = False
    assert attempt()


def test_copies_of_a_chain_have_no_graphs() -> None:
    chain = Chain(MintLayer(1, 3, (4, 4)))
    chain.__dict__["_solver_memory"] = {"forward": lambda: None}
    assert "_solver_memory" not in copy.deepcopy(chain).__dict__

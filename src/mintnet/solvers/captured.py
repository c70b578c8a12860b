"""Steps of Algorithm 1 as CUDA graphs: on a GPU, launching a step costs more than the step.

A graph belongs to a kind of evaluator and a shape: layers of one shape share it, and each solve
copies its own weights and its state into the memory that the graph reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack

from mintnet.graphs import capture, is_capturing
from mintnet.solvers.base import Evaluate
from mintnet.solvers.verified import InFloat64

if TYPE_CHECKING:
    from mintnet.solvers.fixed_point import FixedPoint, State

MOST_GRAPHS = 64
_graphs: OrderedDict[Hashable, CapturedSteps] = OrderedDict()
T = TypeVar("T")


@runtime_checkable
class TensorFunction(Protocol):
    """An evaluator that is a fixed function of x and of its tensors, with nothing read back."""

    @property
    def kind(self) -> Hashable:
        """Equal for evaluators that compute the same function of x and their tensors."""

    def tensors(self) -> tuple[Tensor, ...]: ...

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self: ...

    def __call__(self, x: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


class CapturedSteps:
    """One step of a solver for one kind of evaluator and one shape, ready to be replayed."""

    def __init__(self, solver: FixedPoint, evaluate: TensorFunction, state: State) -> None:
        self.solver = solver
        self.evaluate = evaluate.with_tensors(tensor.clone() for tensor in evaluate.tensors())
        self.state = state.each(lambda tensor: tensor.clone())
        self.replay = capture(self._step, state.x.device, self.state.tensors)

    def _step(self) -> None:
        state, new = self.state, self.solver.advance(self.state, self.evaluate)
        if new.last_x is state.x:  # which is about to be overwritten
            state.last_x.copy_(state.x)
            new = new._replace(last_x=state.last_x)
        for a, b in zip(state.tensors(), new.tensors(), strict=True):
            if b is not a:
                a.copy_(b)

    def run(self, evaluate: Evaluate, state: State, steps: int, stop: bool) -> State:
        """That many steps; with ``stop``, fewer if all samples are done before."""
        assert isinstance(evaluate, TensorFunction)
        mine = [*self.evaluate.tensors(), *self.state.tensors()]
        torch._foreach_copy_(mine, [*evaluate.tensors(), *state.tensors()])
        for _ in range(steps):
            self.replay()
            if stop and bool(self.state.done.all()):  # waits for the device, less long than a step
                break
        return self.state.each(lambda tensor: tensor.clone())


def captured_steps(solver: FixedPoint, evaluate: Evaluate, state: State) -> CapturedSteps | None:
    """Steps ready to be replayed, captured at the first call; None where they cannot be."""
    x = state.x
    widened = any(isinstance(mode, InFloat64) for mode in _get_current_function_mode_stack())
    if not x.is_cuda or is_capturing(x) or widened or not isinstance(evaluate, TensorFunction):
        return None
    tensors = (*evaluate.tensors(), *state.tensors())
    shapes = tuple((tuple(t.shape), t.stride(), t.dtype) for t in tensors)
    settings = (solver.step, solver.tolerance, solver.damped, solver.patience)
    key = (settings, evaluate.kind, shapes, x.device)
    try:
        return recent(_graphs, key, lambda: CapturedSteps(solver, evaluate, state), MOST_GRAPHS)
    except torch.OutOfMemoryError:
        return None


def recent(kept: OrderedDict[Hashable, T], key: Hashable, make: Callable[[], T], most: int) -> T:
    """What is kept under a key, made if it is not; of more than ``most`` the oldest go."""
    kept[key] = kept.pop(key, None) or make()
    while len(kept) > most:
        kept.popitem(last=False)
    return kept[key]

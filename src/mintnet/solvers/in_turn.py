"""Block substitution: the channels of a layer in turn, each block by Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mintnet.solvers.base import Solver, System
from mintnet.solvers.blocks import Blocks
from mintnet.solvers.dual import StructureError
from mintnet.solvers.fixed_point import FixedPoint
from mintnet.solvers.solution import Solution


@dataclass(frozen=True)
class InTurn(Solver):
    """Blocks of channels one after the other, each by Algorithm 1 given those before it.

    Of a layer whose Jacobian is triangular in blocks of channels, a step of one of G blocks costs
    about 1 / G² of a step of the whole, and usually a single block takes most of the steps. In the
    end, steps of the whole layer begin where the blocks have ended: their residual is what counts.

    Args:
        steps: Algorithm 1 as it is used for a block.
        last: the most steps of the whole layer at the end; mostly one or two are needed.

    Examples:
        >>> from mintnet import MintLayer
        >>> layer = MintLayer(channels=3, filters=4, size=(8, 8))
        >>> z = layer(torch.randn(2, 3, 8, 8))[0].detach()
        >>> bool(layer.solve(z, InTurn()).converged.all())
        True
        >>> MintLayer(channels=1, filters=4, size=(8, 8)).solve(z[:, :1], InTurn())
        Traceback (most recent call last):
        mintnet.solvers.dual.StructureError: lower MintLayer 1×8×8, K = 4 has no blocks of channels that could be solved in turn; use mintnet.Auto()
    """  # noqa: E501

    steps: FixedPoint = field(default_factory=lambda: FixedPoint(max_steps=200, watch=True))
    last: int = 10

    def __post_init__(self) -> None:
        if self.last < 0:
            raise ValueError(f"last counts steps and must be at least 0; got {self.last}")
        if self.steps.keep_trace:
            raise ValueError("steps of blocks have no trace in common; use keep_trace=False")

    def _solve(self, system: System, z: Tensor, scale: Tensor) -> Solution:
        if system.blocks is None or (blocks := system.blocks()) is None:
            raise StructureError(
                f"{system.name} has no blocks of channels that could be solved in turn; "
                "use mintnet.Auto()"
            )
        solved, values = blocks.begin(z), []
        count = torch.zeros(len(z), dtype=torch.long, device=z.device)
        for index, channels in enumerate(blocks.channels):
            given, offset = solved.given()
            block = _block(system, blocks, index, given)
            found = self.steps._solve(block, z[:, channels] - offset, scale)
            solved.add(found.value, given)
            values.append(found.value)
            count = count + found.evaluations
        order = sorted(range(len(values)), key=lambda index: blocks.channels[index].start)
        start = torch.cat([values[index] for index in order], 1)
        end = FixedPoint(max_steps=self.last, capture=self.steps.capture)
        whole = end._solve(system, z, scale, start)
        # Each entry of f(x) has been computed once when every block has been evaluated once.
        count = (count + len(values) - 1) // len(values) + whole.evaluations
        return replace(whole, steps=count - 1, evaluations=count)


def _block(system: System, blocks: Blocks, index: int, given: Tensor) -> System:
    def now() -> Blocks:
        # Of the weights as they are when a recording is replayed, and in its own memory.
        assert system.blocks is not None
        made = system.blocks()
        assert made is not None
        return made

    recordable = system.renew is not None

    return System(
        name=f"{system.name}, block {index}",
        evaluate=blocks.evaluator(index),
        start=lambda z: (now() if recordable else blocks).start(index, z),
        ordering=system.ordering,
        memory=system.memory.setdefault(("block", index), {}),
        renew=(lambda: now().evaluator(index)) if recordable else None,
        tensors=system.tensors,
        given=given,
    )

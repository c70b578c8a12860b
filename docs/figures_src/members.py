"""The functions of Fig. 2, and what autograd and the proofs say of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from figures_src.parts import noise, redraw
from mintnet import MintLayer, certify, paired_mint, variable
from mintnet.calculus import Function, Identity, MaskedLinear, Proof, Softplus, Tanh


class Coupling(Function):
    """The additive coupling of NICE on four numbers: y = x + m(x₁, x₂) in the last two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MaskedLinear(4, copies_out=8)
        self.outer = MaskedLinear(4, copies_in=8)
        self.register_buffer("first", torch.tensor([1.0, 1.0, 0.0, 0.0]))

    def forward(self, x: Any) -> Any:
        return x + (1 - self.first) * self.outer(Tanh()(self.inner(self.first * x)))


@dataclass(frozen=True)
class Member:
    """A function of Fig. 2 with what autograd and the proof say of it."""

    name: str
    shape: tuple[int, ...]
    apply: Callable[[Tensor], Tensor]
    proof: Proof | None
    invertible: bool

    def jacobians(self) -> Iterator[Tensor]:
        """At 0 and at some points around it."""
        size = math.prod(self.shape)
        for x in (torch.zeros(size, dtype=torch.float64), *noise(8, size, seed=3)):
            yield torch.autograd.functional.jacobian(
                lambda v: self.apply(v.reshape(1, *self.shape)).flatten(), x
            )

    def place(self) -> str:
        """The innermost set that holds it, from its Jacobians."""
        found = list(self.jacobians())
        diagonals = torch.stack([j.diagonal() for j in found])
        if any(bool(j.triu(1).any()) for j in found):
            return "I"
        if not self.invertible:
            return "F"
        if bool((diagonals == 0).any()):
            return "M"
        if bool((diagonals < 0).any()):
            return "det"
        return "one" if bool((diagonals == 1).all()) else "positive"

    def row(self) -> str:
        found = list(self.jacobians())
        diagonals = torch.stack([j.diagonal() for j in found])
        triangular = not any(bool(j.triu(1).any()) for j in found)
        span = f"{diagonals.min():.2f} to {diagonals.max():.2f}" if triangular else "not triangular"
        verdict = "not in the calculus" if self.proof is None else self.proof.message.split(":")[0]
        verdict = verdict.split(" (")[0].replace("for 4 of 4 coordinates", "").strip()
        return f"| {self.name} | {SETS[self.place()]} | {span} | {verdict} |".replace("-", "−")


SETS = {
    "I": "invertible, outside F",
    "F": "F, not invertible",
    "M": "M, but det J = 0 somewhere",
    "det": "det J ≠ 0",
    "positive": "diag J > 0",
    "one": "diag J = 1",
}


def members() -> list[Member]:
    def calculus(
        name: str, function: Any, shape: tuple[int, ...], invertible: bool = True
    ) -> Member:
        return Member(
            name, shape, lambda x: function(variable(x)).data, certify(function, shape), invertible
        )

    x = Identity()
    mint = redraw(MintLayer(1, 4, (4, 4)), 2.0)
    pair = redraw(paired_mint(1, 4, (4, 4)), 2.0)
    turn = math.pi / 6
    rotation = torch.tensor(
        [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
    ).double()
    return [
        calculus("x²", x * x, (4,), invertible=False),
        calculus("x³", x * x * x, (4,)),
        calculus("− Mint layer", lambda v: -mint.function(v), (1, 4, 4)),
        calculus("Mint layer", mint.function, (1, 4, 4)),
        calculus("softplus", Softplus(), (4,)),
        calculus("coupling", redraw(Coupling(), 1.0), (4,)),
        Member("rotation", (2,), lambda v: v @ rotation.T, None, True),
        Member("Mint pair", (1, 4, 4), lambda v: pair.transform(v)[0], None, True),
    ]

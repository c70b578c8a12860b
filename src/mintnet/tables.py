"""Densities of tables: several small flows, trained together on rows of numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from mintnet.models.vectors import TableModel, VectorFlow

LEAST_ROWS = 5
CHECK_EVERY = 20
"""Steps between two looks at the rows that are held out."""


@dataclass(frozen=True)
class TableFit:
    """How a `TableModel` is fitted; one setting serves all tables.

    All flows are trained at once, each from its own seed, with its own order of the columns, and
    with another part of the rows held out: its EMA weights are kept as they were when these rows
    were most likely. Rows are scaled to mean 0 and deviation 1 first; the flows begin near the best
    Gaussian. The same seed and rows give the same model.

    Attributes:
        members: M flows.
        layers: mixture layers of each flow.
        filters: K; 0 for what a hidden width of 128 allows, from 4 to 16.
        blocks: residual blocks of each layer.
        components: of the mixtures.
        learning_rate: of AdamW.
        weight_decay: of the networks' matrices.
        noise: deviation of normal noise on the scaled rows in training.
        batch_size: rows of a step, for each flow.
        max_steps: the most training steps.
        patience: steps without a better held-out likelihood after which training ends.
        seed: of weights, orders, parts and noise.
    """

    members: int = 8
    layers: int = 2
    filters: int = 0
    blocks: int = 1
    components: int = 6
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    noise: float = 0.02
    batch_size: int = 128
    max_steps: int = 1000
    patience: int = 150
    seed: int = 0

    def fit(self, rows: NDArray[np.float64], columns: list[str]) -> TableModel:
        """The density of rows (n, D), in float64."""
        check_rows(rows, columns)
        count, width = rows.shape
        mean, deviation = rows.mean(0), rows.std(0)
        x = torch.from_numpy((rows - mean) / deviation).float()
        generator = torch.Generator().manual_seed(self.seed)
        orders = [torch.randperm(width, generator=generator) for _ in range(self.members)]
        parts = max(5, self.members)
        size, places = max(1, count // parts), torch.randperm(count, generator=generator)
        shifted = [places.roll(-size * member) for member in range(self.members)]
        held = torch.stack([x[s[:size]][:, o] for s, o in zip(shifted, orders, strict=True)])
        kept = torch.stack([x[s[size:]][:, o] for s, o in zip(shifted, orders, strict=True)])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            filters = self.filters or min(16, max(4, 128 // width))
            sizes = self.layers, filters, self.blocks, self.components
            flows = [VectorFlow(width, *sizes) for _ in range(self.members)]
        for flow, own in zip(flows, kept, strict=True):
            flow.net.initialize(own)
        self._train(flows, kept, held, generator)
        model = TableModel(columns, flows).double().eval()
        model.orders.copy_(torch.stack(orders))
        for flow, order in zip(flows, orders, strict=True):
            flow.pixels.set_from(torch.tensor(rows)[:, order])
        return model

    def _train(
        self, flows: list[VectorFlow], kept: Tensor, held: Tensor, generator: torch.Generator
    ) -> None:
        """Train all flows at once, with weights stacked along a first axis."""
        members = [_LogDensity(flow) for flow in flows]
        weights, buffers = stack_module_state(members)
        template = members[0]

        def log_density(
            weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
        ) -> Tensor:
            return functional_call(template, (weights, buffers), (x,))  # type: ignore[no-any-return]

        each = vmap(log_density)
        decayed = [w for name, w in weights.items() if ".convolutions." in name and w.dim() > 2]
        others = [w for w in weights.values() if all(w is not d for d in decayed)]
        groups: list[dict[str, Any]] = [
            {"params": decayed},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            groups, self.learning_rate, betas=(0.9, 0.99), weight_decay=self.weight_decay
        )
        ema = {name: w.detach().clone() for name, w in weights.items()}
        best, kept_ema = held.new_full((len(flows),), -math.inf), dict[str, Tensor]()
        best_step = 0
        for step in range(self.max_steps + 1):
            if step % CHECK_EVERY == 0:
                with torch.no_grad():
                    likely = each(ema, buffers, held).mean(1)
                better = likely > best
                if bool(better.any()):
                    best_step, best = step, torch.where(better, likely, best)
                    kept_ema = {
                        name: torch.where(
                            better.view(-1, *(1,) * (w.dim() - 1)), w, kept_ema.get(name, w)
                        )
                        for name, w in ema.items()
                    }
                if step - best_step >= self.patience:
                    break
            chosen = torch.rand(kept.shape[:2], generator=generator).argsort(1)[
                :, : self.batch_size
            ]
            batch = kept.gather(1, chosen[..., None].expand(-1, -1, kept.shape[2]))
            batch = batch + self.noise * torch.randn(batch.shape, generator=generator)
            optimizer.zero_grad()
            (-each(weights, buffers, batch).mean(1).sum()).backward()
            optimizer.step()
            decay = min(0.98, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(list(ema.values()), list(weights.values()), 1 - decay)
        for number, member in enumerate(members):
            member.load_state_dict({n: w[number] for n, w in kept_ema.items()}, strict=False)


class _LogDensity(nn.Module):
    """log p of scaled rows, without checks, so that it can be vectorized over weights."""

    def __init__(self, flow: VectorFlow) -> None:
        super().__init__()
        self.net, self.base = flow.net, flow.base

    def forward(self, x: Tensor) -> Tensor:
        z, log_det = self.net.transform(x)
        return self.base.log_prob(z).sum(1) + log_det


def check_rows(rows: NDArray[np.float64], columns: list[str]) -> None:
    """Raise unless a density can be fitted to these rows."""
    if len(rows) < LEAST_ROWS:
        raise ValueError(f"a density needs at least {LEAST_ROWS} rows; got n_samples = {len(rows)}")
    constant = np.flatnonzero(rows.std(0) <= 1e-12 * np.abs(rows).max(0))
    if len(constant):
        names = ", ".join(columns[index] for index in constant)
        raise ValueError(f"constant columns have no density: {names}; leave them out")

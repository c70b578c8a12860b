"""Densities of tables: several small flows, trained together on rows of numbers."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from mintnet.calculus.masks import check_positive
from mintnet.models.vectors import TableModel, VectorFlow

LEAST_ROWS = 5
LAYERS, BLOCKS, COMPONENTS = 2, 1, 6  # of each flow
LEARNING_RATE, WEIGHT_DECAY, BATCH = 3e-3, 0.1, 128
NOISE = 0.03  # the deviation of normal noise on the scaled rows in training
CHECK_EVERY, PATIENCE = 10, 100
"""Steps between two looks at held-out rows, and those without a gain after which training ends."""


def fit_table(
    rows: NDArray[np.float64],
    columns: list[str],
    members: int = 8,
    filters: int | None = None,
    max_steps: int = 1500,
    seed: int = 0,
) -> TableModel:
    """The density of rows (n, D), in float64; one setting serves all tables.

    All flows are trained at once, each from its own seed, with its own order of the columns, and
    with another part of the rows held out: its EMA weights are kept as they were when these rows
    were most likely. Rows are scaled to mean 0 and deviation 1 first; the flows begin near the best
    Gaussian. The same seed and rows give the same model.

    Args:
        members: M flows.
        filters: K; if not given, what a hidden width of 128 allows, from 4 to 16.
        max_steps: the most training steps.
        seed: of weights, orders, parts and noise.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(40, 2))
        >>> fit_table(rows, ["a", "b"], members=2, max_steps=10).sample(3).shape
        torch.Size([3, 2])
    """
    check_positive(members=members, filters=filters or 1, max_steps=max_steps)
    check_rows(rows, columns)
    count, width = rows.shape
    x = torch.from_numpy((rows - rows.mean(0)) / rows.std(0)).float()
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(width, generator=generator) for _ in range(members)]
    size, places = max(1, count // max(5, members)), torch.randperm(count, generator=generator)
    own = [x[places.roll(-size * m)][:, order] for m, order in enumerate(orders)]
    held, kept = torch.stack(own).split([size, count - size], 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = LAYERS, filters or min(16, max(4, 128 // width)), BLOCKS, COMPONENTS
        flows = [VectorFlow(width, *sizes) for _ in range(members)]
    for flow, part in zip(flows, kept, strict=True):
        flow.net.initialize(part)
    best = _train(flows, kept, held, max_steps, generator)
    model = TableModel(columns, flows).double().eval()
    model.held_out = best - float(np.log(rows.std(0)).sum())
    model.orders.copy_(torch.stack(orders))
    for flow, order in zip(flows, orders, strict=True):
        flow.pixels.set_from(torch.tensor(rows)[:, order])
    return model


def _train(
    flows: list[VectorFlow], kept: Tensor, held: Tensor, steps: int, generator: torch.Generator
) -> float:
    """Train all flows at once, with weights stacked along a first axis.

    Gives the mean log-likelihood of rows that were held out, by the flow that did not see them.
    """
    members = [_LogDensity(flow) for flow in flows]
    weights, buffers = stack_module_state(members)
    each = vmap(lambda weights, buffers, x: functional_call(members[0], (weights, buffers), (x,)))
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for name, w in weights.items():
        groups[0 if ".convolutions." in name and w.dim() > 2 else 1]["params"].append(w)
    options: dict[str, Any] = {"betas": (0.9, 0.99), "weight_decay": WEIGHT_DECAY}
    optimizer = torch.optim.AdamW(groups, LEARNING_RATE, **options)
    ema = {name: w.detach().clone() for name, w in weights.items()}
    best, best_step = held.new_full((len(flows),), -math.inf), 0
    kept_ema = dict[str, Tensor]()
    for step in range(steps + 1):
        if step % CHECK_EVERY == 0:
            with torch.no_grad():
                likely = each(ema, buffers, held).mean(1)
            better = likely > best
            if bool(better.any()):
                best_step, best = step, torch.where(better, likely, best)
                for name, w in ema.items():
                    rows = better.view(-1, *[1] * (w.dim() - 1))
                    kept_ema[name] = torch.where(rows, w, kept_ema.get(name, w))
            if step - best_step >= PATIENCE:
                break
        chosen = torch.rand(kept.shape[:2], generator=generator).argsort(1)[:, :BATCH]
        batch = kept.gather(1, chosen[..., None].expand(-1, -1, kept.shape[2]))
        batch = batch + NOISE * torch.randn(batch.shape, generator=generator)
        optimizer.zero_grad()
        (-each(weights, buffers, batch).mean(1).sum()).backward()
        optimizer.step()
        decay = min(0.98, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.values()), list(weights.values()), 1 - decay)
    for number, member in enumerate(members):
        member.load_state_dict({n: w[number] for n, w in kept_ema.items()}, strict=False)
    return float(best.mean())


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

"""Densities of tables: small flows, trained together on rows of numbers, and Gaussian mixtures."""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from mintnet.calculus.masks import check_positive
from mintnet.models.vectors import Columns, TableModel, VectorFlow, gaussian_log_prob

LEAST_ROWS = 5
LAYERS, BLOCKS, COMPONENTS = 2, 1, 6  # of each flow
LEARNING_RATE, WEIGHT_DECAY, BATCH = 3e-3, 0.1, 128
GAUSSIANS = [(count, prior) for count in (2, 4, 8, 16) for prior in (0.1, 1.0, 4.0)]
"""Mixtures beside the flows: components, and how much they share their covariance."""
BINS, EM_STEPS, WEIGHT_STEPS, RIDGE, MOST_ROWS = 32, 50, 100, 1e-6, 5000
"""Of a histogram at most; of fitting mixtures and weights; on variances; that mixtures see."""
CHECK_EVERY, PATIENCE = 10, 100  # steps between looks at held-out rows; without a gain, to the end


def fit_table(
    rows: NDArray[np.float64],
    columns: list[str],
    members: int = 8,
    filters: int | None = None,
    max_steps: int = 1500,
    seed: int = 0,
) -> TableModel:
    """The density of rows (n, D), in float64; one setting serves all tables.

    Columns go through `Columns` first, with the bins of `choose_bins`. All flows are trained at
    once, each from its own seed, with its own order of the columns, and with another part of the
    rows held out: its EMA weights are kept as they were when these rows were most likely. They
    begin near the best Gaussian. Gaussian mixtures of several sizes are fitted to the same parts;
    the weights of flows and mixtures are those under which held-out rows are most likely. The same
    seed and rows give the same model.

    Args:
        members: M flows.
        filters: K; if not given, what a hidden width of 128 allows, from 4 to 16.
        max_steps: the most training steps.
        seed: of weights, orders and parts.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(40, 2))
        >>> fit_table(rows, ["a", "b"], members=2, max_steps=10).sample(3).shape
        torch.Size([3, 2])
    """
    check_positive(members=members, filters=filters or 1, max_steps=max_steps)
    check_rows(rows, columns)
    (count, width), generator = rows.shape, torch.Generator().manual_seed(seed)
    x = torch.from_numpy(rows)
    marginals = Columns.fitted(x, choose_bins((x - x.mean(0)) / x.std(0), generator))
    y, slopes = marginals.log_slopes(x)
    orders = torch.stack([torch.randperm(width, generator=generator) for _ in range(members)])
    parts, size = _parts(count, members, generator)
    held, kept = y[parts].split([size, count - size], 1)
    new, old = (each.float().gather(2, orders[:, None].expand_as(each)) for each in (held, kept))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        sizes = LAYERS, filters or min(16, max(4, 128 // width)), BLOCKS, COMPONENTS
        flows = [VectorFlow(width, *sizes) for _ in range(members)]
    for flow, part in zip(flows, old, strict=True):
        flow.net.initialize(part)
    likely, found = [_train(flows, old, new, max_steps, generator)[:, :MOST_ROWS].double()], []
    for options in GAUSSIANS:
        each = [fit_gaussians(part[None, :MOST_ROWS], *options, generator) for part in kept]
        shares, means, factors = map(torch.cat, zip(*each, strict=True))
        likely.append(gaussian_log_prob(shares, means, factors, held[:, :MOST_ROWS]).logsumexp(2))
        found.append((shares, means.flatten(0, 1), factors.flatten(0, 1)))
    weights = torch.full((len(likely),), 1 / len(likely), dtype=y.dtype)
    for _ in range(WEIGHT_STEPS):
        joint = torch.stack(likely, 2) + weights.log()
        weights = joint.softmax(2).mean((0, 1)).clamp(min=1e-12)  # its logarithm is saved
    logs = (weights / weights.sum() / members).log()
    means, factors = (torch.cat([each[place] for each in found]) for place in (1, 2))
    own = [(each[0] + log).flatten() for each, log in zip(found, logs[1:], strict=True)]
    model = TableModel(columns, flows, marginals.ends.shape[1] - 1, len(means)).double().eval()
    model.marginals, model.orders, model.means, model.factors = marginals, orders, means, factors
    model.log_weights = torch.cat([logs[:1].expand(members), *own])
    model.held_out = float(joint.logsumexp(2).mean() + slopes.sum(1)[parts[:, :size]].mean())
    return model


def _parts(count: int, members: int, generator: torch.Generator) -> tuple[Tensor, int]:
    """Orders of all rows that begin with different ones, to be held out, and how many those are."""
    size, places = max(1, count // max(5, members)), torch.randperm(count, generator=generator)
    return torch.stack([places.roll(-size * member) for member in range(members)]), size


def choose_bins(x: Tensor, generator: torch.Generator) -> Tensor:
    """How many bins a histogram of each column of scaled rows (n, D) has, (D,).

    0, unless held-out rows are likelier by it than by Gaussians, by two standard errors or more.
    """
    parts, size = _parts(len(x), 5, generator)
    gains = []
    for rows in x[parts]:
        new, old = rows[:size][:MOST_ROWS], rows[size:][:MOST_ROWS]
        smooth = fit_gaussians(old.T[..., None], COMPONENTS, 1.0, generator)
        base = gaussian_log_prob(*smooth, new.T[..., None]).logsumexp(2).T
        maps = [Columns.fitted(old, torch.full(x.shape[1:], k)) for k in range(1, BINS + 1)]
        y, slopes = map(torch.stack, zip(*(each.log_slopes(new) for each in maps), strict=True))
        gains.append(F.logsigmoid(y) + F.logsigmoid(-y) + slopes - base)
    gain = torch.cat(gains, 1)
    mean, best = gain.mean(1).max(0)
    error = gain.std(1).gather(0, best[None])[0] / gain.shape[1] ** 0.5
    return torch.where(mean > 2 * error, best + 1, 0)


def fit_gaussians(
    x: Tensor, count: int, prior: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Mixtures of Gaussians by expectation maximization, of several tables (G, n, D) at once.

    Gives log-weights (G, K), means (G, K, D) and factors of the covariances (G, K, D, D). Each
    component begins with the rows that are nearest to one of them. To those of a component,
    ``prior`` · D rows with the mean covariance of all components are added.
    """
    (_, rows, width), prior = x.shape, prior * x.shape[2]
    first = torch.rand(x.shape[:2], generator=generator).argsort(1)[:, :count, None]
    near = torch.cdist(x, x.gather(1, first.expand(-1, -1, width))).argmin(2)
    share = F.one_hot(near, first.shape[1]).to(x)
    for _ in range(EM_STEPS):
        total = share.sum(1) + 1e-9
        means = share.mT @ x / total[..., None]
        apart = x[:, None] - means[:, :, None]
        scatter = (apart * share.mT[..., None]).mT @ apart
        common = scatter.sum(1, keepdim=True) / rows
        covariance = (scatter + prior * common) / (total + prior)[..., None, None]
        factors = torch.linalg.cholesky(covariance + RIDGE * torch.eye(width).to(x))
        log_weights = ((total + 1) / (rows + total.shape[1])).log()
        share = gaussian_log_prob(log_weights, means, factors, x).softmax(2)
    return log_weights, means, factors


def _train(
    flows: list[VectorFlow], kept: Tensor, held: Tensor, steps: int, generator: torch.Generator
) -> Tensor:
    """Train all flows at once, weights stacked; gives log p of rows that each did not see."""
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
        optimizer.zero_grad()
        (-each(weights, buffers, batch).mean(1).sum()).backward()
        optimizer.step()
        decay = min(0.98, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(ema.values()), list(weights.values()), 1 - decay)
    for number, member in enumerate(members):
        member.load_state_dict({n: w[number] for n, w in kept_ema.items()}, strict=False)
    with torch.no_grad():
        return torch.as_tensor(each(kept_ema, buffers, held))


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

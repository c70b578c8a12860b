"""Mean held-out log-likelihood of small tables: FlowDensity beside three other densities.

    python -m benchmarks.tables --out results/tables.json

Each table is split at random, a quarter of its rows for testing. All methods see the training rows
scaled by their own mean and deviation, and likelihoods are of the scaled rows. Settings are chosen
on training rows alone: the bandwidth of the kernel density by 5-fold cross-validation, covariance
type and number of components (1 to 20) of the Gaussian mixture on a fifth that is held out, then
fitted to all; FlowDensity has its defaults. The neural spline flow (zuko) holds out a fifth, keeps
the weights that were best on it, and trains for as many CPU seconds as FlowDensity took.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mintnet.analysis.origin import commit, machine

Rows = NDArray[np.float64]


def tables(seed: int) -> dict[str, Rows]:
    """The five tables; the counts of digits get uniform noise."""
    from sklearn.datasets import (
        load_breast_cancer,
        load_diabetes,
        load_digits,
        load_wine,
        make_moons,
    )

    digits = load_digits().data
    return {
        "two moons": make_moons(2000, noise=0.1, random_state=seed)[0],
        "wine": load_wine().data,
        "breast cancer": load_breast_cancer().data,
        "diabetes": np.delete(load_diabetes(scaled=False).data, 1, 1),
        "digits": digits + np.random.default_rng(seed).random(digits.shape),
    }


def split(rows: Rows, share: float, seed: int) -> tuple[Rows, Rows]:
    from sklearn.model_selection import train_test_split

    first, second = train_test_split(rows, test_size=share, random_state=seed)
    return first, second


def flow_density(train: Rows, test: Rows, seed: int) -> float:
    from mintnet.sklearn import FlowDensity

    return FlowDensity(random_state=seed).fit(train).score(test)


def kernel_density(train: Rows, test: Rows, seed: int) -> float:
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KernelDensity

    search = GridSearchCV(KernelDensity(), {"bandwidth": np.geomspace(0.03, 2, 25)}, cv=5)
    return float(search.fit(train).best_estimator_.score_samples(test).mean())


def gaussian_mixture(train: Rows, test: Rows, seed: int) -> float:
    from sklearn.mixture import GaussianMixture

    inner, held = split(train, 0.2, seed)
    found = []
    for kind in ("full", "tied", "diag", "spherical"):
        for count in range(1, 21):
            model = GaussianMixture(count, covariance_type=kind, random_state=seed)
            found.append((model.fit(inner).score(held), kind, count))
    _, kind, count = max(found)
    return float(
        GaussianMixture(count, covariance_type=kind, random_state=seed).fit(train).score(test)
    )


def spline_flow(train: Rows, test: Rows, seed: int, seconds: float) -> float:
    import zuko

    torch.manual_seed(seed)
    inner, held, new = (torch.tensor(rows).float() for rows in (*split(train, 0.2, seed), test))
    flow = zuko.flows.NSF(train.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(flow.parameters(), 1e-3)
    best, weights, end = -np.inf, flow.state_dict(), time.process_time() + seconds
    step = 0
    while time.process_time() < end:
        if step % 10 == 0:
            with torch.no_grad():
                likely = float(flow().log_prob(held).mean())
            if likely > best:
                best, weights = likely, copy.deepcopy(flow.state_dict())
        optimizer.zero_grad()
        batch = inner[torch.randperm(len(inner))[:128]]
        (-flow().log_prob(batch).mean()).backward()
        optimizer.step()
        step += 1
    flow.load_state_dict(weights)
    with torch.no_grad():
        return float(flow().log_prob(new).mean())


def compare(
    seeds: list[int], names: list[str], methods: list[str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """One row for each table and split."""
    found = []
    for seed in seeds:
        for name, rows in tables(seed).items():
            if names and name not in names:
                continue
            train, test = split(rows, 0.25, seed)
            mean, deviation = train.mean(0), np.where(train.std(0) > 0, train.std(0), 1.0)
            train, test = (train - mean) / deviation, (test - mean) / deviation
            row: dict[str, Any] = {"table": name, "split": seed, "rows": len(train)}
            row |= {"columns": train.shape[1], "seconds": MINUTE}
            for method in methods:
                begun, options = time.process_time(), {}
                if method == "NSF":
                    options["seconds"] = row["seconds"]
                row[method] = round(METHODS[method](train, test, seed, **options), 3)
                if method == "FlowDensity":
                    row["seconds"] = round(time.process_time() - begun, 1)
                say(f"{name}, split {seed}: {method} {row[method]:.3f} {row['seconds']:.1f} s")
            found.append(row)
    return found


METHODS: dict[str, Callable[..., float]] = {
    "FlowDensity": flow_density,
    "NSF": spline_flow,
    "GaussianMixture": gaussian_mixture,
    "KernelDensity": kernel_density,
}
MINUTE = 60.0
"""CPU seconds of the spline flow where FlowDensity does not run."""


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The mean over the splits of each table, and who is ahead."""
    found = []
    for name in dict.fromkeys(row["table"] for row in rows):
        mine = [row for row in rows if row["table"] == name]
        means = {
            method: float(np.mean([row[method] for row in mine]))
            for method in METHODS
            if method in mine[0]
        }
        ahead = max(means, key=lambda method: means[method])
        sizes = {key: mine[0][key] for key in ("rows", "columns")}
        found.append({"table": name, **sizes, "splits": len(mine), **means, "ahead": ahead})
    return found


def draw_moons(path: Path) -> None:
    """The learnt density of two moons beside rows that it was fitted to and new ones."""
    from mintnet.figures.style import LIGHT, saved, styled_figure
    from mintnet.sklearn import FlowDensity

    rows = tables(0)["two moons"][:1500]
    density = FlowDensity(random_state=0).fit(rows)
    x, y = np.linspace(-1.6, 2.6, 211), np.linspace(-1.1, 1.6, 136)
    grid = np.stack(np.meshgrid(x, y), -1)
    height = np.exp(density.score_samples(grid.reshape(-1, 2))).reshape(len(y), len(x))
    with styled_figure(LIGHT, (11.0, 2.9)) as figure:
        panels = figure.subplots(1, 3, sharex=True, sharey=True)
        titles = "1,500 rows", "the density", "1,500 samples"
        for axes, title in zip(panels, titles, strict=True):
            axes.set(title=title, xlim=(x[0], x[-1]), ylim=(y[0], y[-1]), aspect="equal")
            axes.grid(visible=False)
        for axes, points in ((panels[0], rows), (panels[2], density.sample(1500))):
            axes.scatter(*points.T, s=2, color=LIGHT.colours[0], linewidths=0)
        panels[1].pcolormesh(x, y, height, cmap="viridis", rasterized=True)
        path.write_bytes(saved(figure))
    print(f"{path}: the density sums to {height.sum() * (x[1] - x[0]) * (y[1] - y[0]):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[6, 7])
    parser.add_argument("--tables", nargs="+", default=[])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--picture", type=Path, help="draw the density of two moons instead")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if options.picture:
        draw_moons(options.picture)
        return
    rows = compare(
        options.seeds, options.tables, options.methods, lambda line: print(line, flush=True)
    )
    means = summary(rows)
    print("| table | rows × columns | " + " | ".join(options.methods) + " |")
    for row in means:
        cells = [f"{row[method]:.2f}" for method in options.methods]
        print(f"| {row['table']} | {row['rows']} × {row['columns']} | {' | '.join(cells)} |")
    if options.out:
        command = f"python -m benchmarks.tables --seeds {' '.join(map(str, options.seeds))}"
        origin = {"command": command, "commit": commit(), "machine": machine(torch.device("cpu"))}
        figures = {**origin, "unit": "nats a scaled row", "means": means, "splits": rows}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

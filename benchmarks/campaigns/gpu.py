"""The cases of `inverse` on a GPU, captured and not, and samples of the shipped models."""

from __future__ import annotations

import random
from typing import Any

import torch

import mintnet as mn

from . import inverse


def missing() -> str | None:
    """Why it cannot run here."""
    return None if torch.cuda.is_available() else "this campaign needs a GPU; torch finds none here"


def draw(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.9:
        return inverse.draw(rng)
    shipped = {"shipped": rng.choice(("mnist", "cifar10")), "samples": 64}
    return {**shipped, "temperature": rng.choice((0.1, 1.0, 2.0)), "seed": rng.getrandbits(31)}


def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    if "shipped" not in case:
        return inverse.run(case, "cuda")
    flow = mn.Flow.from_pretrained(case["shipped"]).cuda()
    z = flow.sample_latents(case["samples"], case["temperature"], case["seed"])
    with torch.no_grad():
        found = flow.solve(z)
        wrong = inverse.unverified_reasons(flow.net, z, found, chain=True)
    passed = int(found.converged.sum())
    counts = {"solves": len(z) * len(flow.net.layers()), f"{case['shipped']} verified": passed}
    return counts, wrong

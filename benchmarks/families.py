"""`mintnet bench families`: each family of flows trained for the same time on the same data.

Equal compute means equal time of training on the same machine: wall time on a GPU, processor time
on a CPU, where other work may be going on (give it one thread, OMP_NUM_THREADS=1). Set-up and the
capture of a CUDA graph are not counted, and how many steps each family got is listed. All else is
the same too: uniform dequantization, the logit with the same λ, Adam with warm-up and a linear
decay over the second half of the time, gradients clipped; the weights that were best on held-out
training images (looked at twenty times, which is not counted either); and the mean over the whole
test set in true float32 with the same noise. IAF is left out: its likelihood needs an inversion in
every step. The likelihoods of i-ResNet and FFJORD are estimates (20 terms and 4 probes of the
series for i-ResNet, 16 steps of Runge–Kutta for FFJORD), and the table says so.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from mintnet import FFJORD, Bijection, IResNetBlock, Logit
from mintnet.analysis.origin import machine
from mintnet.cli.command import Command
from mintnet.cli.model import pick_device
from mintnet.cli.output import console
from mintnet.data import ImageData, load
from mintnet.graphs import capture
from mintnet.models.base import parameter_count
from mintnet.models.flow import LAMBDAS
from mintnet.models.noise import Normal, uniform_noise
from mintnet.precision import true_float32

from .networks import FAMILIES, family_net
from .timing import check_positive, timed

BATCHES = {"digits": 32, "mnist": 256}
RATES = {"digits": 5e-3, "mnist": 2e-3}
"""Learning rates, from short trials on held-out training images."""
FACTORS = {
    "nice": 0.3,
    "maf": 0.3,
    "mintnet": 2.0,
    "i-resnet": 2.0,
    "ffjord": 2.0,
}
"""Families that want another learning rate, as a multiple."""
CLIP = 1.0
LOOKS = 20
"""How often held-out images are evaluated in a training."""


class Density:
    """Pixels to bits per dimension through a network: the data path that all families share."""

    def __init__(self, net: Bijection, data: ImageData, lam: float) -> None:
        self.net, self.logit, self.levels = net, Logit(lam), data.levels
        self.size = math.prod(data.shape)

    def bits(self, x: Tensor) -> Tensor:
        """Bits per dimension of dequantized pixels in (0, 1), (batch,)."""
        y, log_det_logit = self.logit.transform(x)
        z, log_det = self.net.transform(y)
        nats = Normal().log_prob(z).flatten(1).sum(1) + log_det + log_det_logit
        return (self.size * math.log(self.levels) - nats) / (self.size * math.log(2))

    def mean_bits(self, images: Tensor, seed: int, batch: int = 250) -> Tensor:
        """Bits per dimension of images with fixed noise, in float64, (count,)."""
        index = torch.arange(len(images), device=images.device)
        parts = []
        for some, pixels in zip(index.split(batch), images.split(batch), strict=True):
            noise = uniform_noise(seed, 0, some, tuple(images.shape[1:]))
            parts.append(self.bits((pixels.float() + noise) / self.levels).double())
        return torch.cat(parts)


class Step:
    """One step of the optimizer; on a GPU all of it is one CUDA graph."""

    def __init__(self, density: Density, images: Tensor, batch: int) -> None:
        self.density, self.images = density, images
        device = images.device
        self.index = torch.zeros(batch, dtype=torch.long, device=device)
        self.parameters = list(density.net.parameters())
        self.rate = torch.zeros((), device=device)
        self.skipped = torch.zeros((), device=device)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.rate, capturable=cuda)
        self.replay = capture(self.run, device, self.state)

    def state(self) -> list[Tensor]:
        """All tensors that a step changes."""
        moments = [v for state in self.optimizer.state.values() for v in state.values()]
        return [*self.parameters, self.skipped, *moments]

    def run(self) -> Tensor:
        """Dequantize, forward, backward, clip, update. A step that is not finite moves nothing."""
        x = self.images[self.index].float()
        loss = self.density.bits((x + torch.rand_like(x)) / self.density.levels).mean()
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        finite = norm.isfinite() & loss.isfinite()
        for g in gradients:
            g.mul_((CLIP / (norm + 1e-6)).clamp(max=1)).masked_fill_(~finite, 0.0)
        self.skipped += ~finite
        self.optimizer.step()
        return loss.detach()

    def __call__(self, index: Tensor, rate: float) -> Tensor:
        self.index.copy_(index)
        self.rate.fill_(rate)
        return self.replay()


class BestWeights:
    """The weights that were best on held-out images so far."""

    def __init__(self, density: Density, held: Tensor, clock: Callable[[], float]) -> None:
        self.density, self.held, self.clock = density, held, clock
        self.best, self.looks, self.seconds = math.inf, 0, 0.0
        self.weights = [p.detach().clone() for p in density.net.parameters()]

    @torch.no_grad()
    def look(self) -> None:
        """Evaluate the held-out images, with the same noise each time; its time is kept apart."""
        begin = self.clock()
        found = float(self.density.mean_bits(self.held, seed=2).mean())
        if found < self.best:
            self.best = found
            for kept, p in zip(self.weights, self.density.net.parameters(), strict=True):
                kept.copy_(p)
        self.looks += 1
        self.seconds += self.clock() - begin

    @torch.no_grad()
    def restore(self) -> None:
        """Put the best weights back into the network."""
        for kept, p in zip(self.weights, self.density.net.parameters(), strict=True):
            p.copy_(kept)


def learning_rate(top: float, step: int, progress: float) -> float:
    """Linear warm-up over 50 steps, then constant, then linear to 2 % over the second half."""
    return top * min(1.0, (step + 1) / 50) * min(1.0, max(0.02, 2 * (1 - progress)))


def prepared(name: str, data: ImageData, images: Tensor, lam: float, seed: int) -> Density:
    """A fresh network whose normalizations were set by a batch; from then on they are weights."""
    torch.manual_seed(seed)
    net = family_net(name, data.shape).to(images.device).train()
    density = Density(net, data, lam)
    with torch.no_grad():
        x = images[:1000].float()
        density.bits((x + torch.rand_like(x)) / data.levels)
    for module in net.modules():
        if hasattr(module, "is_set"):
            module.eval()  # checks no more whether it has been set, which a graph could not do
    return density


def train(
    name: str, data: ImageData, device: torch.device, options: Families
) -> tuple[Density, dict[str, Any]]:
    """A network trained for ``options.seconds``, and how it was trained."""
    lam, total = LAMBDAS[options.data_set], options.seconds
    held_out = min(1000, len(data) // 10)
    images, held = data.images.to(device).split([len(data) - held_out, held_out])
    density = prepared(name, data, images, lam, options.seed)
    batch = options.batch_size or BATCHES[options.data_set]
    step = Step(density, images, batch)
    top = RATES[options.data_set] * FACTORS.get(name, 1.0)
    clock = time.perf_counter if images.is_cuda else time.process_time
    order, at, count = torch.empty(0, device=device), 0, 0
    best = BestWeights(density, held, clock)
    begin = clock()
    while (seconds := clock() - begin - best.seconds) < total:
        if at + batch > len(order):
            order, at = torch.randperm(len(images), device=device), 0
        loss = step(order[at : at + batch], learning_rate(top, count, seconds / total))
        at, count = at + batch, count + 1
        look = seconds > total * (best.looks + 1) / LOOKS
        if count % 20 == 0 or look:
            float(loss)  # keeps the queue of a GPU short
        if look:
            best.look()
    float(loss)
    seconds = clock() - begin - best.seconds
    best.look()
    best.restore()
    return density, {
        "steps": count,
        "seconds": round(seconds, 1),
        "held_out_images": held_out,
        "held_out_bits_per_dim": round(best.best, 4),
        "batch": batch,
        "learning_rate": top,
        "steps_skipped": int(step.skipped),
    }


@torch.no_grad()
def evaluate(density: Density, data: ImageData, device: torch.device) -> dict[str, Any]:
    """The mean over all test images in true float32, with the standard error of that mean."""
    density.net.eval()
    for module in density.net.modules():
        if isinstance(module, IResNetBlock):
            module.terms, module.probes = 20, 4
        if isinstance(module, FFJORD):
            module.steps = 16
    torch.manual_seed(0)
    with true_float32():
        found = density.mean_bits(data.images.to(device), seed=1)
    return {
        "bits_per_dim": round(float(found.mean()), 4),
        "standard_error": round(float(found.std() / len(found) ** 0.5), 4),
        "test_images": len(found),
    }


@torch.no_grad()
def sampled(density: Density, data: ImageData, device: torch.device) -> dict[str, Any]:
    """Seconds of 64 samples with the default solver, and how many are verified."""
    shape = density.net.output_shape or data.shape
    z = torch.randn(64, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    density.net.solve(z)  # may capture CUDA graphs: not counted
    taken, solution = timed(lambda: density.net.solve(z), device)
    verified = int(solution.converged.sum())
    return {"sampling_seconds": round(taken, 3), "samples": 64, "samples_verified": verified}


@dataclass(kw_only=True)
class Families(Command):
    """Train each family of flows for the same time; compare bits per dimension of test images."""

    data_set: Annotated[
        tyro.conf.Positional[Literal["digits", "mnist"]], tyro.conf.arg(metavar="DATA_SET")
    ]
    """digits, or mnist with --data."""

    data: Path | None = None
    """The folder with the data set's files; digits need none."""

    seconds: float = 60.0
    """Of training, for each family."""

    families: tuple[str, ...] = tuple(FAMILIES)
    """Which families."""

    batch_size: int | None = None
    """Images of a step; 32 for digits and 256 for mnist if not given."""

    seed: int = 0
    """Of the first weights."""

    device: str = "cpu"
    """Where to compute: cpu, cuda, or auto for a GPU if there is one."""

    no_samples: bool = False
    """Leave out the timing of 64 samples of each."""

    def run(self) -> dict[str, Any]:
        from mintnet.training.devices import computing

        out, device = console(), pick_device(self.device)
        if unknown := [name for name in self.families if name not in FAMILIES]:
            raise ValueError(f"unknown family {unknown[0]!r}; choose from {', '.join(FAMILIES)}")
        check_positive(batch_size=1 if self.batch_size is None else self.batch_size)
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"--seconds is a positive number; got {self.seconds}")
        training, test = (load(self.data_set, split, self.data) for split in ("train", "test"))
        rows = {}
        for name in self.families:
            with computing(tf32=True):
                density, facts = train(name, training, device, self)
            row = {
                "family": FAMILIES[name].title,
                "likelihood": "exact" if FAMILIES[name].exact else "estimated",
                "parameters": parameter_count(density.net),
                **evaluate(density, test, device),
                **({} if self.no_samples else sampled(density, test, device)),
                **facts,
            }
            rows[name] = row
            out.print(
                f"{row['family']:20} {row['bits_per_dim']:7.3f} ± {row['standard_error']:.3f} bpd "
                f"({row['likelihood']}), {row['parameters']:>9,} weights, {row['steps']} steps in "
                f"{row['seconds']:.0f} s, {row['steps_skipped']} skipped"
            )
            if not self.no_samples:
                verified, taken = row["samples_verified"], row["sampling_seconds"]
                out.print(f"{'':20} 64 samples in {taken} s, {verified} verified", style="dim")
        return {
            "data_set": self.data_set,
            "logit_lambda": LAMBDAS[self.data_set],
            "seed": self.seed,
            "evaluation": "true float32, the whole test set, one dequantization draw",
            "share_of_gpu": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100") + " %",
            "machine": machine(device),
            "rows": rows,
        }

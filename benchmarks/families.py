"""Train each family of flows for the same time on the same data; compare bits per dimension.

    python benchmarks/families.py digits --seconds 60 --out results/families-digits.json
    python benchmarks/families.py mnist --data data --seconds 60 --device cuda --out families.json

Equal compute means equal time of training on the same machine: wall time on a GPU, processor time
on a CPU, where other work may be going on (give it one thread, OMP_NUM_THREADS=1). Set-up and, on a
GPU, the capture of a CUDA graph are not counted, and how many steps each family got is listed. All
else is the same too: uniform dequantization, the logit with the same λ, Adam with warm-up and a
linear decay over the second half of the time, gradients clipped; the weights that were best on
held-out training images (looked at twenty times, which is not counted either); and the mean over
the whole test set in true float32 with the same noise. IAF is left out: its likelihood needs an
inversion in every step. The likelihoods of i-ResNet and FFJORD are estimates (20 terms and 4 probes
of the series for i-ResNet, 16 steps of Runge–Kutta for FFJORD), and the table says so.

With --out the file is written after every family; families that are in it already are kept, so that
a run that was interrupted goes on, and a file of another data set, time or seed is refused. Several
runs may write one file, each with some of the families, on one GPU too: with NVIDIA's MPS and
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 in each of four, every family has a quarter of the
multiprocessors to itself; the file says so. Sampling times would then mean little: --no-samples
leaves them out.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from mintnet.bench.machine import machine
from mintnet.bijections import Bijection, Logit
from mintnet.data import ImageData, load
from mintnet.flows import FFJORD, IResNetBlock
from mintnet.models.families import FAMILIES, family_net, parameter_count
from mintnet.models.flow import LAMBDAS, standard_normal_log_prob
from mintnet.models.noise import uniform_noise
from mintnet.precision import true_float32

BATCHES = {"digits": 32, "mnist": 256}
RATES = {"digits": 5e-3, "mnist": 2e-3}
"""Learning rates, from short trials on held-out training images."""

FACTORS = {
    "nice": 0.3,
    "maf": 0.3,
    "mintnet": 2.0,
    "i-resnet": 2.0,
    "ffjord": 2.0,
    "planar": 3.0,
    "sylvester": 3.0,
}
"""Families that want another one, as a multiple."""


class Density:
    """Pixels to bits per dimension through a network: the data path that all families share."""

    def __init__(self, net: Bijection, data: ImageData, lam: float) -> None:
        self.net, self.logit, self.levels = net, Logit(lam), data.levels
        self.size = math.prod(data.shape)

    def bits(self, x: Tensor) -> Tensor:
        """Bits per dimension of dequantized pixels in (0, 1), (batch,)."""
        y, log_det_logit = self.logit.transform(x)
        z, log_det = self.net.transform(y)
        nats = standard_normal_log_prob(z.flatten(1)) + log_det + log_det_logit
        return (self.size * math.log(self.levels) - nats) / (self.size * math.log(2))


class Step:
    """One step of the optimizer; on a GPU all of it as one CUDA graph."""

    def __init__(self, density: Density, images: Tensor, batch: int, clip: float) -> None:
        self.density, self.images, self.clip = density, images, clip
        device = images.device
        self.index = torch.zeros(batch, dtype=torch.long, device=device)
        self.parameters = list(density.net.parameters())
        self.rate = torch.tensor(0.0, device=device)
        self.skipped = torch.zeros((), device=device)
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.parameters, lr=self.rate, capturable=cuda)
        self.graph: torch.cuda.CUDAGraph | None = None

    def run(self) -> None:
        """Dequantize, forward, backward, clip, update. A step that is not finite moves nothing."""
        x = self.images[self.index].float()
        loss = self.density.bits((x + torch.rand_like(x)) / self.density.levels).mean()
        for parameter in self.parameters:
            parameter.grad = None
        loss.backward()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = torch.stack([g.norm() for g in gradients]).norm()
        factor = (self.clip / (norm + 1e-6)).clamp(max=1)
        sound = norm.isfinite() & loss.isfinite()
        for g in gradients:
            g.copy_((g * factor).masked_fill(~sound, 0.0))  # a graph takes no number from the CPU
        self.skipped += ~sound
        self.optimizer.step()
        self.loss = loss.detach()

    def capture(self) -> None:
        """Warm up with a rate of 0, then record."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run()
        self.graph = graph
        for state in self.optimizer.state.values():  # forget the warm-up
            for value in state.values():
                value.zero_()

    def __call__(self, index: Tensor, rate: float) -> None:
        self.index.copy_(index)
        self.rate.fill_(rate)
        self.run() if self.graph is None else self.graph.replay()


def learning_rate(top: float, step: int, progress: float) -> float:
    """Linear warm-up over 50 steps, then constant, then linear to 2 % over the second half."""
    return top * min(1.0, (step + 1) / 50) * min(1.0, max(0.02, 2 * (1 - progress)))


class Keeper:
    """The weights that were best on held-out images so far."""

    def __init__(self, density: Density, held: Tensor, clock: Callable[[], float]) -> None:
        self.density, self.held, self.clock = density, held, clock
        self.best, self.at, self.looks, self.seconds = math.inf, 0.0, 0, 0.0
        self.weights = [p.detach().clone() for p in density.net.parameters()]

    @torch.no_grad()
    def look(self, progress: float) -> None:
        """Compare, with the same noise each time; how long it takes is kept apart."""
        begin = self.clock()
        index = torch.arange(len(self.held), device=self.held.device)
        x = self.held.float() + uniform_noise(2, 0, index, tuple(self.held.shape[1:]))
        bits = [self.density.bits(part / self.density.levels) for part in x.split(250)]
        found = float(torch.cat(bits).mean())
        if found < self.best:
            self.best, self.at = found, progress
            for kept, p in zip(self.weights, self.density.net.parameters(), strict=True):
                kept.copy_(p)
        self.looks += 1
        self.seconds += self.clock() - begin

    @torch.no_grad()
    def restore(self) -> None:
        for kept, p in zip(self.weights, self.density.net.parameters(), strict=True):
            p.copy_(kept)


def prepared(name: str, data: ImageData, images: Tensor, args: argparse.Namespace) -> Density:
    """A fresh network whose normalizations have seen a batch; from then on they are weights."""
    torch.manual_seed(args.seed)
    net = family_net(name, data.shape).to(images.device).train()
    density = Density(net, data, LAMBDAS[args.data_set])
    with torch.no_grad():
        x = images[:1000].float()
        density.bits((x + torch.rand_like(x)) / data.levels)
    for module in net.modules():
        if hasattr(module, "is_set"):
            module.eval()  # looks no more whether it has been set, which a graph could not do
    return density


def train(name: str, data: ImageData, args: argparse.Namespace) -> tuple[Density, dict]:
    """A trained network and how it was trained."""
    held_out = min(1000, len(data) // 10)
    images, held = data.images.to(args.device).split([len(data) - held_out, held_out])
    density = prepared(name, data, images, args)
    batch = args.batch or BATCHES[args.data_set]
    step, graphed = Step(density, images, batch, args.clip), False
    if images.is_cuda and not args.eager:
        try:
            step.capture()
            graphed = True
        except RuntimeError as error:
            print(f"{name}: no CUDA graph ({str(error).splitlines()[0]}); going on without")
            torch.cuda.synchronize()
            density = prepared(name, data, images, args)
            step = Step(density, images, batch, args.clip)
    top = args.rate or RATES[args.data_set] * FACTORS.get(name, 1.0)
    clock = time.perf_counter if images.is_cuda else time.process_time
    order, at, count, curve = torch.empty(0, device=images.device), 0, 0, []
    keeper = Keeper(density, held, clock)
    begin = clock()
    while (seconds := clock() - begin - keeper.seconds) < args.seconds:
        if at + batch > len(order):
            order, at = torch.randperm(len(images), device=images.device), 0
        step(order[at : at + batch], learning_rate(top, count, seconds / args.seconds))
        at, count = at + batch, count + 1
        if count % 20 == 0:  # reading the loss also keeps the queue of a GPU short
            loss = float(step.loss)
            if count % 1000 == 0 or (count % 100 == 0 and len(curve) < 5):
                curve.append([count, round(loss, 4)])
            if args.verbose and count % 500 == 0:
                print(f"  {name}: {seconds:.0f} s, step {count}, {loss:.3f}", flush=True)
        if seconds > args.seconds * (keeper.looks + 1) / 20:
            float(step.loss)  # the device is done with what came before
            keeper.look(seconds / args.seconds)
    if images.is_cuda:
        torch.cuda.synchronize()
    seconds = clock() - begin - keeper.seconds
    keeper.look(1.0)
    keeper.restore()
    facts = {
        "steps": count,
        "seconds": round(seconds, 1),
        "held_out_images": held_out,
        "held_out_bits_per_dim": round(keeper.best, 4),
        "best_after_share_of_time": round(keeper.at, 2),
        "batch": batch,
        "learning_rate": top,
        "images_seen": count * batch,
        "cuda_graph": graphed,
        "steps_skipped": int(step.skipped),
        "curve": curve,
    }
    return density, facts


@torch.no_grad()
def evaluate(density: Density, data: ImageData, device: str, batch: int = 250) -> dict:
    """The mean over all test images in true float32, with the standard error of that mean."""
    density.net.eval()
    for module in density.net.modules():
        if isinstance(module, IResNetBlock):
            module.terms, module.probes = 20, 4
        if isinstance(module, FFJORD):
            module.steps = 16
    torch.manual_seed(0)
    bits = []
    with true_float32():
        for begin in range(0, len(data), batch):
            index = torch.arange(begin, min(begin + batch, len(data)), device=device)
            noise = uniform_noise(1, 0, index, data.shape)
            pixels = data.images[begin : begin + batch].to(device).float()
            bits.append(density.bits((pixels + noise) / density.levels).double().cpu())
    found = torch.cat(bits)
    return {
        "bits_per_dim": round(float(found.mean()), 4),
        "standard_error": round(float(found.std() / len(found) ** 0.5), 4),
        "worst_image": round(float(found.max()), 2),
        "test_images": len(found),
    }


@torch.no_grad()
def sampled(density: Density, data: ImageData, device: str, count: int = 64) -> dict:
    """How long 64 samples take with the default solver, and how many are certified."""
    shape = density.net.output_shape or data.shape
    z = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    density.net.solve(z[:2])
    begin = time.perf_counter()
    solution = density.net.solve(z)
    return {
        "sampling_seconds": round(time.perf_counter() - begin, 3),
        "samples_certified": int(solution.converged.sum()),
        "samples": count,
    }


SAME = ("command", "data_set", "logit_lambda", "seed")
"""What all rows of a file must share, or they would not be on equal terms."""


def rows_in(file: Path | None, record: dict) -> dict:
    """The families that a file has already; raises if they were trained on other terms."""
    text = file.read_text() if file is not None and file.is_file() else ""
    if not text:
        return {}
    there = json.loads(text)
    for key in SAME:
        if there[key] != record[key]:
            raise ValueError(
                f"{file} has rows with {key} = {there[key]!r}, and this run has {record[key]!r}: "
                "they cannot be compared. Choose another file with --out."
            )
    rows: dict = there["rows"]
    return rows


def add_row(file: Path | None, record: dict, name: str, row: dict) -> None:
    """Write a family beside those that this run and others have written."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record["rows"] = rows_in(file, record) | {name: row}
        file.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data_set", choices=sorted(BATCHES))
    parser.add_argument("--data", type=Path, help="the folder with the data set's files")
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, for each family")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rate", type=float, help="learning rate of every family")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--no-samples", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        training, test = (load(args.data_set, split, args.data) for split in ("train", "test"))
    except ValueError as error:
        parser.error(str(error))
    commit = ["git", "rev-parse", "--short", "HEAD"]
    chosen = [f" --{name} {value:g}" for name in ("batch", "rate") if (value := vars(args)[name])]
    record = {
        "command": f"python benchmarks/families.py {args.data_set} --seconds {args.seconds:g}"
        + "".join(chosen),
        "commit": subprocess.run(commit, capture_output=True, text=True).stdout.strip() or None,
        "machine": machine(torch.device(args.device)),
        "share_of_gpu": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100") + " %",
        "evaluation": "true float32, the whole test set, one draw of noise",
        "data_set": args.data_set,
        "logit_lambda": LAMBDAS[args.data_set],
        "seed": args.seed,
        "rows": {},
    }
    try:
        record["rows"] = rows_in(args.out, record)
    except ValueError as error:
        parser.error(str(error))
    for name in args.families:
        if name in record["rows"]:
            continue
        density, facts = train(name, training, args)
        row = {
            "family": FAMILIES[name].title,
            "likelihood": "exact" if FAMILIES[name].exact else "estimated",
            "parameters": parameter_count(density.net),
            **evaluate(density, test, args.device),
            **({} if args.no_samples else sampled(density, test, args.device)),
            **facts,
        }
        add_row(args.out, record, name, row)
        print(
            f"{row['family']:20} {row['bits_per_dim']:7.3f} ± {row['standard_error']:.3f} bpd "
            f"({row['likelihood']}), {row['parameters']:>9,} weights, {row['steps']} steps in "
            f"{row['seconds']:.0f} s, {row['steps_skipped']} skipped"
            + (
                ""
                if args.no_samples
                else f", 64 samples {row['sampling_seconds']} s, {row['samples_certified']} good"
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()

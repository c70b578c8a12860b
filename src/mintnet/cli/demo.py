"""`mintnet demo`: everything once, small."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.markup import escape

from mintnet.cli.command import Command
from mintnet.cli.demo_pretrained import NAME, show_pretrained
from mintnet.cli.output import console, strong


@dataclass(kw_only=True)
class Demo(Command):
    """Check a small network, train one on digits, show the MNIST model of the package, report.

    The report compares the trained one with simple models.
    """

    run_folder: Annotated[Path, tyro.conf.arg(name="run")] = Path("runs/demo")
    """Run folder; with a finished run in it, the next free number is added to the name."""

    epochs: int | None = None
    """Passes over the training images, if not the preset's."""

    seed: int = 0
    """Of everything."""

    def run(self) -> dict[str, Any]:
        from mintnet.models.storage import SHIPPED

        out, numbers = console(), count(1)

        def head(words: str) -> None:
            number = next(numbers)
            out.print(("\n" if number > 1 else "") + f"[bold]{number}. {words}[/]")

        head("A small network, checked")
        figures: dict[str, Any] = {"check": check_a_network(out)}
        head("A density model of digits, trained from scratch")
        figures["train"] = trained = self._train(out)
        run = Path(trained["run"])
        head("Two simple models of the same digits, to compare with")
        figures["baselines"] = _baselines(out)
        if NAME in SHIPPED:
            head("A density model of MNIST that comes with the package")
            figures["pretrained"] = show_pretrained(out, run, self.seed)
        head("The report")
        return {**figures, **self._report(out, run, figures["baselines"])}

    def _train(self, out: Console) -> dict[str, Any]:
        from mintnet.training import ConsoleProgress, train

        folder = free_folder(self.run_folder)
        out.print(f"Its run folder is {escape(str(folder))}.")
        return train(
            "digits",
            folder,
            resume=True,  # a run that was interrupted goes on
            progress=ConsoleProgress(out),
            epochs=self.epochs,
            seed=self.seed,
        )

    def _report(self, out: Console, run: Path, baselines: dict[str, float]) -> dict[str, Any]:
        from mintnet.cli.report import Report, collect, finish
        from mintnet.figures.gather import Amounts
        from mintnet.figures.report import Headline

        command = Report(model=str(run), device="cpu", seed=self.seed)
        contents = collect(command, out, command.open(), Amounts(likelihood=10**6, seconds=15.0))
        bpd = contents.bits_per_dim
        assert bpd is not None
        best = min(baselines.values())
        gain = Headline(
            f"{best - bpd:.2f}",
            "bits below the better simple model",
            ", ".join(f"{name} {value:.3f}" for name, value in baselines.items()),
            good=bpd < best,
        )
        figures = finish(out, run / "report.html", contents, [gain])
        page = (run / "report.html").resolve()
        out.print(f"\nOpen it in a browser: {strong(page.as_uri())}")
        return figures


def check_a_network(out: Console, seed: int = 0) -> dict[str, Any]:
    """Build a small MintNet, compare its log-determinant with autograd's, and invert it."""
    import torch

    from mintnet.models import MintNet, MintNetConfig

    started = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = MintNet(MintNetConfig((1, 8, 8), pairs=(2, 2), filters=(16, 4))).double()
        with torch.no_grad():
            for parameter in net.parameters():  # a fresh one is close to the identity
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    out.print(
        f"A MintNet of {len(net.layers())} layers for 8 × 8 images, "
        f"{net.parameter_count():,} parameters, random weights, float64."
    )
    with torch.no_grad():
        z, log_det = net(x)
    jacobians = (
        torch.autograd.functional.jacobian(lambda v: net(v[None])[0].flatten(), one).reshape(64, 64)
        for one in x
    )
    expected = torch.stack([torch.linalg.slogdet(jacobian)[1] for jacobian in jacobians])
    difference = float((log_det - expected).abs().max())
    out.print(
        f"Its log-determinant of the first image is {float(log_det[0]):.6f}; autograd's 64 × 64 "
        f"Jacobian says {float(expected[0]):.6f}. The largest difference is {difference:.1e}."
    )
    solution = net.solve(z)
    back = solution.require("This should not happen with a network of this size.")
    error = float((back - x).abs().max())
    out.print(
        f"Inverted layer by layer, x comes back to {error:.1e}; run forward again, z is met to "
        f"{float(solution.residual.max()):.1e} of its largest entry."
    )
    if difference > 1e-9:
        raise ArithmeticError(f"log-determinants differ by {difference:.1e}, expected at most 1e-9")
    seconds = time.perf_counter() - started
    return {
        "log_det_difference": difference,
        "round_trip_error": error,
        "residual": float(solution.residual.max()),
        "seconds": seconds,
    }


def free_folder(folder: Path) -> Path:
    """The folder itself if a run can begin or go on there, else the next one with a number.

    Examples:
        >>> free_folder(Path("nowhere/demo")).as_posix()
        'nowhere/demo'
    """
    from mintnet.training import RunError, RunFolder

    candidate, number = folder, 1
    while True:
        run = RunFolder(candidate)
        try:
            if run.is_empty():
                return candidate
            saved, state = run.read_configuration(), run.read_checkpoint()
            if state is not None and state.step < saved["steps"]:
                return candidate
        except RunError:
            pass  # something else is there, or a run that cannot go on
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")


def _baselines(out: Console) -> dict[str, float]:
    """Bits per dimension of two simple models of the digits."""
    from mintnet.data import load
    from mintnet.training import gaussian_bits_per_dim, histogram_bits_per_dim

    train, test = load("digits", "train"), load("digits", "test")
    found = {
        "Gaussian on the logits": gaussian_bits_per_dim(train, test),
        "histogram of each pixel": histogram_bits_per_dim(train, test),
    }
    for name, value in found.items():
        out.print(f"{name}: {value:.3f} bits per dimension on the test images")
    return found

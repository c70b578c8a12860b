"""`mintnet demo`: everything once, small."""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from mintnet.analysis import Headline
from mintnet.cli.app import benchmarks
from mintnet.cli.command import Command, Whole
from mintnet.cli.images import Interpolate, Sample
from mintnet.cli.output import console, print_commands
from mintnet.cli.train import Evaluate, Report, write_page
from mintnet.data import load
from mintnet.models import MintNet, MintNetConfig
from mintnet.models.storage import SHIPPED, read_config
from mintnet.training import Progress, RunError, RunFolder, train

CREDIT = "LeCun, Cortes and Burges; CC BY-SA 3.0"


class Demo(Command):
    """Check a small network, train one on digits, show the MNIST model of the package, report.

    The report shows the best pictures, and compares the trained model with simple ones.
    """

    run_folder: Annotated[Path, tyro.conf.arg(name="run")] = Path("runs/demo")
    """Run folder; with a finished run in it, the next free number is added to the name."""
    epochs: Whole = None  # Passes over the training images, if not the preset's.
    seed: int = 0  # Of everything.

    def run(self) -> dict[str, Any]:
        out, figures = console(), dict[str, Any]()
        out.print("[bold]1. A small network, checked[/]")
        figures["check"] = check_a_network(out)
        out.print("\n[bold]2. A density model of digits, trained from scratch[/]")
        figures["train"] = trained = self._train(out)
        run = Path(trained["run"])
        out.print("\n[bold]3. Two simple models of the same digits, to compare with[/]")
        simple, sets = benchmarks("baselines"), (load("digits", "train"), load("digits", "test"))
        figures["baselines"] = baselines = {
            "Gaussian on the logits": simple.gaussian_bits_per_dim(*sets),
            "histogram of each pixel": simple.histogram_bits_per_dim(*sets),
        }
        for name, value in baselines.items():
            out.print(f"{name}: {value:.3f} bits per dimension on the test images")
        out.print("\n[bold]4. A density model of MNIST that comes with the package[/]")
        figures["pretrained"] = self._show_pretrained(out, run)
        out.print("\n[bold]5. The report[/]")
        figures |= self._report(out, run, figures)
        out.print("\n[bold]6. What to try next[/]")
        commands = {
            f"open {(run / 'report.html').resolve().as_uri()}": "the report, in a browser",
            "mintnet sample mnist -n 16": "more digits",
            "mintnet explain mnist-classifier test:7": "what a classifier sees in a picture",
            "mintnet train folder --data PICTURES": "a model of your own pictures",
            f"mintnet train digits --run {run} --resume --epochs 200": "train this one on",
        }
        print_commands(out, commands)
        return figures

    def _train(self, out: Console) -> dict[str, Any]:
        run = free_folder(self.run_folder)
        out.print(f"Its run folder is {escape(str(run))}.")
        options: dict[str, Any] = {"seed": self.seed, "epochs": self.epochs}
        return train("digits", run, resume=True, progress=Progress(out), **options)

    def _show_pretrained(self, out: Console, folder: Path) -> dict[str, Any]:
        samples, between = folder / "mnist-samples.png", folder / "mnist-interpolation.png"
        facts = Sample(model="mnist", device="cpu", count=16, seed=self.seed, out=samples).run()
        Interpolate(model="mnist", device="cpu", places=(0, 1, 2, 3), out=between).run()
        found = Evaluate(model="mnist", batch_size=32, accelerator="cpu").run()
        known = read_config(SHIPPED["mnist"]).get("test_bits_per_dim")
        out.print(f"All 10,000 test images ({CREDIT}) have {known}.")
        return {**facts, **found, "pictures": [samples, between]}

    def _report(self, out: Console, run: Path, figures: dict[str, Any]) -> dict[str, Any]:
        command = Report(model=str(run), device="cpu", seed=self.seed)
        found = command.collect(out, command.open())
        baselines, bpd = figures["baselines"], found.bits_per_dim or 0.0
        best = min(baselines.values())
        names = ", ".join(f"{name} {value:.3f}" for name, value in baselines.items())
        label = "bits below the better simple model"
        found.headlines.insert(1, Headline(f"{best - bpd:.2f}", label, names, bpd < best))
        drawn, mixed = (picture.read_bytes() for picture in figures["pretrained"]["pictures"])
        note = "16 draws, each verified. Below is the model of digits that was trained just now."
        corners = f"Test images in the corners ({CREDIT}), and what lies between their codes."
        found.gallery = [
            ("MNIST, drawn from the model of the package", note, drawn),
            ("Between four MNIST images", corners, mixed),
        ]
        return write_page(out, run / "report.html", found)


def check_a_network(out: Console) -> dict[str, Any]:
    """Build a small MintNet, compare its log-determinant with autograd's, and invert it."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        net = MintNet(MintNetConfig((1, 8, 8), pairs=(2, 2), filters=(16, 4))).double()
        for parameter in net.parameters():  # a fresh one is close to the identity
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
        z, log_det = net(x)
    jacobian: Any = torch.autograd.functional.jacobian(lambda v: net(v)[0].flatten(1).sum(0), x)
    expected = torch.linalg.slogdet(jacobian.flatten(2).transpose(0, 1))[1]
    difference = float((log_det - expected).abs().max())
    solution = net.solve(z)
    error, residual = float((solution.value - x).abs().max()), float(solution.residual.max())
    out.print(
        f"A MintNet of {len(net.layers())} layers for 8 × 8 images, "
        f"{net.parameter_count():,} parameters, random weights, float64.\n"
        f"Its log-determinant of the first image is {float(log_det[0]):.6f}; autograd's 64 × 64 "
        f"Jacobian says {float(expected[0]):.6f}. The largest difference is {difference:.1e}.\n"
        f"Inverted layer by layer, x comes back to {error:.1e}; run forward again, z is met to "
        f"{residual:.1e} of its largest entry."
    )
    if max(difference, residual) > 1e-9:
        raise ArithmeticError(f"expected at most 1e-9; got {difference:.1e} and {residual:.1e}")
    return {"log_det_difference": difference, "round_trip_error": error, "residual": residual}


def free_folder(folder: Path) -> Path:
    """The folder itself if a run can begin or go on there, else the next one with a number."""
    place, numbers = folder, count(2)
    while True:
        run = RunFolder(place)
        with suppress(RunError):  # something else is there, or a run that cannot go on
            if run.is_empty() or (run.read() and not run.is_finished()):
                return place
        place = folder.with_name(f"{folder.name}-{next(numbers)}")

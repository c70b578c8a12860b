"""mintnet train: train a preset on its data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mintnet.cli.command import Command
from mintnet.cli.output import console


@dataclass(kw_only=True)
class Train(Command):
    """Train a preset on its data.

    The run folder gets the weights (last and best), the metrics, samples and all that --resume
    needs. Options left out are the preset's, or those of the run that is resumed.
    """

    preset: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="PRESET")]
    """digits, mnist, cifar10, imagenet32, or folder for images of your own; classifiers:
    digits-classifier, mnist-classifier, cifar10-classifier, mnist-resnet, cifar10-resnet."""
    data: Path | None = None
    """Folder with the data set's files; digits need none."""
    run_folder: Annotated[Path | None, tyro.conf.arg(name="run")] = None
    """Run folder, new or empty; runs/PRESET if not given."""
    epochs: int | None = None
    """Passes over the training images."""
    seed: int | None = None
    """Of first weights, order and noise; 0 if not given."""
    resume: bool = False
    """Go on with the run in the folder; begin one if there is none."""
    max_steps: int | None = None
    """Length of the run in steps, where that is shorter than its epochs; 0: no such limit."""
    batch_size: int | None = None
    """Images in one step, over all devices together."""
    learning_rate: Annotated[float | None, tyro.conf.arg(aliases=["--lr"])] = None
    """At its highest."""
    schedule: Literal["step", "cosine", "linear"] | None = None
    """Of the learning rate."""
    milestones: tuple[float, ...] | None = None
    """Of the step schedule, as shares of the run."""
    hold: float | None = None
    """Of the linear schedule: the share of the run before the decay."""
    warmup: int | None = None
    """Steps over which the learning rate rises."""
    adam: bool = False
    """Adam instead of AMSGrad."""
    muon: bool = False
    """Muon for kernels, without weight decay; AMSGrad or Adam moves the rest."""
    unmasked_step: float | None = None
    """Of Muon: the step of kernels without a mask (couplings), as a share of the others'."""
    eps: float | None = None
    """Of AMSGrad or Adam, for a loss in nats per image."""
    weight_decay: float | None = None
    """Of AMSGrad or Adam."""
    decoupled: bool = False
    """Subtract the weight decay from the weights themselves, as AdamW does."""
    label_smoothing: float | None = None
    """Of classifiers: the share of the truth that is spread over all classes."""
    ema: float | None = None
    """Decay of the running average of the weights; 0 for none."""
    clip: float | None = None
    """Largest norm of the gradient, in nats per image; 0 for no clipping."""
    accumulate: int | None = None
    """Pieces into which each process cuts its part of a batch, to save memory."""
    precision: Literal["auto", "float32", "tf32", "bf16", "float64"] | None = None
    """Of training: auto is bf16 on a GPU that has it, else float32; evaluation is in float32."""
    augmentation: Literal["none", "flip", "crop", "crop-flip"] | None = None
    """Of the training images."""
    validation: float | None = None
    """Share of the training images that is held out."""
    no_validation: bool = False
    """Train on all training images."""
    size: int | None = None
    """Height and width, for folder; 32 if not given."""
    grey: bool = False
    """One channel instead of three, for folder."""
    pairs: tuple[int, ...] | None = None
    """Pairs of Mint layers in each stage."""
    filters: tuple[int, ...] | None = None
    """K of each stage."""
    kernel_size: int | None = None
    """Of masked convolutions: an odd number."""
    couplings: int | None = None
    """Width of affine couplings after each squeeze, 0 for none; they are not in the paper."""
    logit_lambda: float | None = None
    """λ of the logit."""
    centre: float | None = None
    """Of the logit: what the zeros around an image stand for. -6.54 where pixels are black."""
    init: str | None = None
    """A model to begin with, instead of fresh weights; network and --validation are its own,
    --warmup is 200."""
    devices: str | None = None
    """A number, or auto for all there are."""
    nodes: int | None = None
    """Machines."""
    accelerator: Literal["auto", "cpu", "cuda", "gpu", "mps"] = "auto"
    """Kind of device."""
    threads: int | None = None
    """CPU threads of each process; as the system has it if not given, one for tiny images."""
    plain: bool = False
    """Without fast kernels and recorded steps on a GPU."""
    compile: bool = False
    """On a CPU, compile the layers: minutes at the start, about a tenth faster from then on."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; half a minute if not given."""
    sample_every: int | None = None
    """Steps between grids of samples, 0 for none; ten in a run if not given, one in a short run."""
    sample_count: int | None = None
    """Images in a grid of samples; 64 if not given, 16 for large images on a CPU."""
    validate_every: int = 1
    """Epochs between validations."""
    report_every: int | None = None
    """Steps between lines of the metrics; an epoch, at most 100, if not given."""

    def run(self) -> dict[str, Any]:
        """Train, and return the run's figures."""
        from mintnet.training import Cadence, ConsoleProgress, Devices, Plan, Recipe, train
        from mintnet.training.devices import is_first_process

        out = console()
        choices = {field.name for field in (*fields(Plan), *fields(Recipe))} - {"preset"}
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in given.items() if name in choices}
        given["grey"] = self.grey or None
        given["decoupled"] = self.decoupled or None
        given["muon"] = self.muon or None
        given["amsgrad"] = False if self.adam else None
        given["data"] = None if self.data is None else str(self.data)
        if self.no_validation:
            if self.validation:
                raise ValueError("--validation holds images out and --no-validation none: take one")
            given["validation"] = 0.0
        figures = train(
            self.preset,
            self.run_folder or Path("runs", self.preset),
            resume=self.resume,
            devices=Devices(
                self.devices,
                self.nodes,
                self.accelerator,
                self.threads,
                not self.plain,
                self.compile,
            ),
            cadence=Cadence(
                checkpoint=self.checkpoint_every,
                samples=self.sample_every,
                validation=self.validate_every,
                report=self.report_every,
                sample_count=self.sample_count,
            ),
            progress=ConsoleProgress(out),
            **given,
        )
        if is_first_process():
            out.print(_summary(figures), markup=False)
        return figures


def _summary(figures: dict[str, Any]) -> str:
    best = figures["best"]
    name, at = figures["figure"], figures["best_step"]
    held = "" if best is None else f", best validation {name} {best:.3f} at {at}"
    steps, seconds = figures["steps"], figures["seconds"]
    taken = f"{steps} step{'s' * (steps != 1)} in {seconds:.0f} s of training"
    return f"{figures['run']}: {taken}{held}"

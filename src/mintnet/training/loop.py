"""`train`: one run, from its beginning or from where it was stopped, to its end."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.bijections import Logit
from mintnet.data import ImageData
from mintnet.files import clear_scraps
from mintnet.models.flow import Flow
from mintnet.models.labelled import ImageClassifier
from mintnet.models.locate import load_flow, load_model, locate
from mintnet.models.storage import read_config
from mintnet.training.build import build_classifier, build_flow, describe, size_warning
from mintnet.training.cadence import Cadence
from mintnet.training.classification import ClassificationTask
from mintnet.training.data import load_images
from mintnet.training.devices import (
    Devices,
    cpu_threads,
    float32_math,
    is_first_process,
    make_trainer,
    quiet,
)
from mintnet.training.fast import chosen_precision, fast_path
from mintnet.training.files import RunError, disk_errors
from mintnet.training.folder import RunFolder
from mintnet.training.plan import Plan
from mintnet.training.progress import Progress, Silent
from mintnet.training.recipe import data_and_kind
from mintnet.training.task import DensityTask, Task

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    from mintnet.training.housekeeping import Housekeeping
    from mintnet.training.module import TrainingModule


def train(
    preset: str,
    run: str | Path,
    *,
    resume: bool = False,
    devices: Devices | None = None,
    cadence: Cadence | None = None,
    progress: Progress | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Train a preset and return the run's figures.

    Args:
        preset: of `RECIPES`.
        run: the run folder; it must be new or empty, unless ``resume``.
        resume: go on with the run in the folder; begin one if there is none.
        devices: where; one device if not given.
        cadence: how often to report, sample and save.
        progress: is told how the run goes.
        **given: fields of `Plan` and `Recipe` that differ from the preset's.

    Raises:
        ValueError: `RunError` and others of its kind, for what a user can mend.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     small = dict(pairs=(1,), filters=(2,), batch_size=32, max_steps=2)
        ...     figures = train("digits", f"{folder}/run", cadence=Cadence(samples=0), **small)
        >>> figures["steps"], figures["finished"]
        (2, True)
    """
    folder = RunFolder(Path(run).expanduser())
    if given.get("data") is not None:  # the run may be used from elsewhere later
        given["data"] = str(Path(given["data"]).expanduser().absolute())
    devices, cadence, progress = devices or Devices(), cadence or Cadence(), progress or Silent()
    first = is_first_process()
    if not first:
        progress = Silent()
    try:
        with quiet(), disk_errors(folder.path):
            return _train(preset, folder, resume, devices, cadence, progress, given, first)
    except ValueError:
        if first:
            raise
        raise SystemExit(1) from None  # the first process says why
    finally:
        progress.stop()


def _train(
    preset: str,
    folder: RunFolder,
    resume: bool,
    devices: Devices,
    cadence: Cadence,
    progress: Progress,
    given: dict[str, Any],
    first: bool,
) -> dict[str, Any]:
    from mintnet.training.housekeeping import Housekeeping
    from mintnet.training.module import TrainingModule

    resume = resume or not first  # what the first process has written is no reason to refuse
    plan, saved = _plan(preset, folder, resume, given)
    name, _ = data_and_kind(plan.preset)
    data = load_images(name, "train", plan.data, size=plan.size, grey=plan.grey)
    facts = describe(name, data, plan.data, plan.size, plan.grey)
    if plan.recipe.precision == "auto":
        plan = replace(plan, recipe=plan.recipe.changed(precision=chosen_precision(devices)))
    task = _task(plan, data, saved)
    task.fast, how = fast_path(task, plan.recipe.precision, devices)
    start = folder.read_checkpoint() if saved else None
    if saved:
        _same_images(folder, saved["data"], facts)
    module = TrainingModule(task, data, plan, start)
    extra = {"preset": plan.preset, "data": facts, "validation": plan.recipe.validation}
    keeper = Housekeeping(folder, cadence, progress, extra, start)
    if module.step >= module.total:
        progress.note(f"{folder.path} is finished: {module.step} steps; nothing to do")
        return _figures(module, keeper, folder, resumed_from=module.step)
    begun = module.step
    trainer = _trainer(module, keeper, folder, devices)  # refuses devices before a file is there
    if first and not saved:
        folder.write_configuration(
            {"plan": plan.to_dict(), "data": facts, "model": task.describe(), "steps": module.total}
        )
        if plan.init is not None:
            progress.note(
                f"begun with {plan.init}: its network; {plan.recipe.validation:g} of the images "
                f"held out; the learning rate rises over {plan.recipe.warmup} steps"
            )
        warning = size_warning(data.shape[1])
        if plan.preset == "folder" and plan.pairs is None and warning:
            progress.note(f"warning: {warning}")
    if first and saved:
        clear_scraps(folder.path)
        folder.rewind_metrics(begun)
        progress.note(f"going on with {folder.path} at step {begun} of {module.total}")
    progress.note(how)
    _fit(trainer, module, keeper, folder, devices)
    return _figures(module, keeper, folder, resumed_from=begun if saved else None)


def _trainer(
    module: TrainingModule, keeper: Housekeeping, folder: RunFolder, devices: Devices
) -> Trainer:
    precision = module.plan.recipe.precision
    return make_trainer(
        devices,
        precision if module.task.fast is None else "float32",  # fast kernels see to it themselves
        callbacks=[keeper],
        logger=_logger(folder, keeper.progress),
        default_root_dir=folder.path,
        max_epochs=math.ceil(module.total / module.steps_per_epoch) - module.epoch,
        reload_dataloaders_every_n_epochs=1,
        log_every_n_steps=2**30,
    )


def _fit(
    trainer: Trainer,
    module: TrainingModule,
    keeper: Housekeeping,
    folder: RunFolder,
    devices: Devices,
) -> None:
    from mintnet.training.interrupt import Interruption, Stopped
    from mintnet.training.module import NotFiniteError

    precision = module.plan.recipe.precision
    try:
        with (
            float32_math(tf32=precision in ("tf32", "bf16")),
            cpu_threads(devices.threads, module.images[0].numel()),
            Interruption(wanted=trainer.world_size == 1) as keeper.interruption,
        ):
            trainer.fit(module)
    except Stopped as error:
        raise KeyboardInterrupt(str(error)) from None
    except SystemExit as error:  # what Lightning makes of Ctrl-C
        if not trainer.interrupted:
            raise
        raise KeyboardInterrupt from error
    except NotFiniteError as error:
        saved = folder.last.exists()
        if trainer.is_global_zero and not saved and module.is_finite():
            keeper.save_model(module, "last")
            saved = True
        kept = f"the weights saved last are in {folder.last}" if saved else "no weights are saved"
        average = "" if module.average.decay else ", or keep an average to go back to (--ema)"
        raise RunError(
            f"{error} at step {module.step + 1}, so the run stops; {kept}: try a lower learning "
            f"rate or clip the gradient{average}, in another run"
        ) from error


def _logger(folder: RunFolder, progress: Progress) -> TensorBoardLogger | bool:
    """Curves for TensorBoard; metrics.jsonl has the same figures where it is not installed."""
    from lightning.pytorch.loggers import TensorBoardLogger

    try:
        return TensorBoardLogger(folder.path, name="", version="tensorboard")
    except ModuleNotFoundError:
        progress.note("no curves for TensorBoard: it is not installed")
        return False


def _plan(
    preset: str, folder: RunFolder, resume: bool, given: dict[str, Any]
) -> tuple[Plan, dict[str, Any] | None]:
    """The plan, and what the folder says about itself if a run is there to go on with."""
    Plan.of(preset, **given)  # names an unknown preset before anything else
    if not resume:
        folder.require_empty()
    if folder.is_empty() or not resume:
        return Plan.of(preset, **{**given, **_of_start(preset, given)}), None
    saved = folder.read_configuration()
    return Plan.resumed(saved, str(folder.path), preset, **given), saved


WARMUP = 200
"""Steps over which the learning rate rises where trained weights are begun with."""


def _of_start(preset: str, given: dict[str, Any]) -> dict[str, Any]:
    """What is not given, for a model to begin with: its network, what was held out, a warm-up.

    Images that were held out from it are chosen by the same share; with a larger one it would be
    validated on images that it was trained on. Without a warm-up the first step, before there are
    moments to speak of, undoes what was learnt.
    """
    if given.get("init") is None:
        return {}
    config, (name, kind) = read_config(locate(given["init"])), data_and_kind(preset)
    taken: dict[str, Any] = {"warmup": WARMUP}
    share, data = config.get("validation"), config.get("data")
    if isinstance(share, float) and isinstance(data, dict) and data.get("name") == name:
        taken["validation"] = share
    if kind == "flow":
        net = load_flow(given["init"]).net.config  # checked, which the file is not
        taken.update((option, getattr(net, option)) for option in _OPTIONS)
    return {name: value for name, value in taken.items() if given.get(name) is None}


def _task(plan: Plan, data: ImageData, saved: dict[str, Any] | None) -> Task:
    """The model to train; of a run that goes on, behind the logit that it was begun with."""
    if data_and_kind(plan.preset)[1] != "flow":
        return _classification(plan, data)
    if plan.recipe.label_smoothing:
        raise RunError(f"{plan.preset} is a density model; it has no labels to smooth")
    flow = build_flow(
        plan.preset,
        data,
        plan.seed,
        plan.pairs,
        plan.filters,
        plan.logit_lambda,
        plan.kernel_size,
        plan.centre,
        plan.couplings,
    )
    if plan.recipe.unmasked_step != 1 and not flow.net.config.couplings:
        raise RunError("--unmasked-step is for couplings, and this network has none: --couplings")
    if plan.init is not None:
        start = load_flow(plan.init)
        if (start.net.config, start.levels) != (flow.net.config, flow.levels):
            raise RunError(f"{plan.init} holds another network: {_differences(start, flow)}")
        flow.load_state_dict(start.state_dict())
        # Weights belong to the logit that they were trained behind.
        lam = start.logit.lam if plan.logit_lambda is None else plan.logit_lambda
        flow.logit = Logit(lam, start.logit.centre if plan.centre is None else plan.centre)
    if saved is not None:
        model = saved["model"]
        flow.logit = Logit(model["logit_lambda"], model.get("centre", 0.0))
    return DensityTask(flow.double() if plan.recipe.precision == "float64" else flow)


def _differences(start: Flow, flow: Flow) -> str:
    """In what a model to begin with differs from the one to be trained, and what to do."""
    theirs, ours = (dict(f.net.config.to_dict(), levels=f.levels) for f in (start, flow))
    unlike = [name for name in ours if ours[name] != theirs[name]]
    said = ", ".join(f"{name} {theirs[name]} and not {ours[name]}" for name in unlike)
    if not set(unlike) <= set(_OPTIONS):
        return f"{said}; choose another"
    options = [f"--{name.replace('_', '-')}" for name in unlike]
    return f"{said}; leave out {', '.join(options)}"


_OPTIONS = ("pairs", "filters", "kernel_size", "couplings")


def _classification(plan: Plan, data: ImageData) -> Task:
    for name, part in (("logit_lambda", "logit"), ("centre", "logit"), ("couplings", "couplings")):
        if getattr(plan, name) is not None:
            option = "--" + name.replace("_", "-")
            raise RunError(f"{plan.preset} is a classifier; it has no {part}, and so no {option}")
    model = build_classifier(
        plan.preset, data, plan.seed, plan.pairs, plan.filters, plan.kernel_size
    )
    if plan.init is not None:
        start = load_model(plan.init)
        if not isinstance(start, ImageClassifier) or start.describe() != model.describe():
            raise RunError(
                f"{plan.init} holds another network than {plan.preset}; begin with one of the same "
                f"kind and shape"
            )
        model.load_state_dict(start.state_dict())
    model = model.double() if plan.recipe.precision == "float64" else model
    return ClassificationTask(model, plan.recipe.label_smoothing)


def _same_images(folder: RunFolder, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in ("images", "shape", "levels", "checksum"):
        if before.get(name) != now[name]:
            raise RunError(
                f"{folder.path} was begun with other images ({name} {before.get(name)}, now "
                f"{now[name]}); give the same --data, or name another folder with --run"
            )


def _figures(
    module: TrainingModule, keeper: Housekeeping, folder: RunFolder, resumed_from: int | None
) -> dict[str, Any]:
    return {
        "preset": module.plan.preset,
        "run": str(folder.path),
        "steps": module.step,
        "epochs": module.epochs,
        "finished": module.step >= module.total,
        "resumed_from": resumed_from,
        "seconds": keeper.meter.seconds,
        "falls": module.falls,
        "steps_left_out": sum(row.get("kind") == "left out" for row in folder.read_metrics()),
        "train": keeper.train,
        "validation": keeper.validation,
        "figure": module.task.figure_names[0],
        "best": keeper.best,
        "best_step": keeper.best_step,
    }

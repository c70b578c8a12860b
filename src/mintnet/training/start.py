"""`train`: begin a run, or go on with one, up to where the loop takes over."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mintnet.data import ImageData, load
from mintnet.files import clear_scraps, sha256
from mintnet.models import Flow
from mintnet.models.storage import FEWEST, SCORES, WEIGHTS, save_scores
from mintnet.schema import check
from mintnet.training import devices as places
from mintnet.training.build import build_task, options_of_model
from mintnet.training.data import Order, describe
from mintnet.training.folder import OTHER, RunError, RunFolder, explained_errors
from mintnet.training.loop import Run, lacks_samples
from mintnet.training.output import Progress
from mintnet.training.recipe import Recipe, data_and_kind
from mintnet.training.step import ClassificationTask, DensityTask


def train(
    preset: str,
    run: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a preset into a run folder, new or empty, and return the run's figures.

    With ``resume``, go on with the run in the folder if there is one; a larger ``epochs`` or
    ``max_steps`` extends it. Options are fields of `Recipe`; None means not given. For what a user
    can mend a ValueError is raised, mostly `RunError`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     small = dict(pairs=(1,), filters=(2,), batch_size=32, max_steps=2, sample_every=0)
        ...     figures = train("digits", f"{folder}/run", **small)
        >>> figures["steps"], figures["finished"]
        (2, True)
    """
    folder, first = RunFolder(run), places.is_first_process()
    if options.get("data") is not None:  # the run may be used from elsewhere later
        options["data"] = str(Path(options["data"]).expanduser().absolute())
    progress = progress if first and progress is not None else Progress()
    try:
        with explained_errors(folder.path), folder.locked() if first else nullcontext():
            # what the first process has written is no reason for the others to refuse
            return _train(preset, folder, resume or not first, progress, options)
    except (ValueError, KeyboardInterrupt) as error:
        if first:  # it alone says why
            raise
        raise SystemExit(130 if isinstance(error, KeyboardInterrupt) else 1) from None
    finally:
        progress.stop()


def _train(
    preset: str, folder: RunFolder, resume: bool, progress: Progress, options: dict[str, Any]
) -> dict[str, Any]:
    recipe, saved = _recipe(preset, folder, resume, options)
    if places.is_first_process():
        clear_scraps(folder.path)
    data = _load(recipe, "train")
    facts, order = describe(recipe, data), Order(recipe, len(data))
    state = folder.read_checkpoint() if saved else None
    if saved:
        recipe = _extended(folder, recipe, order.per_epoch, saved, facts)
    devices = places.Devices(recipe.devices, recipe.nodes, recipe.accelerator)
    precision: Any = places.chosen_precision(recipe.precision, devices)
    recipe, density = replace(recipe, precision=precision), recipe.kind in ("flow", "deep")
    total, begun = recipe.steps(order.per_epoch), state["step"] if state else 0
    figures: dict[str, Any] = {"train": {}, "validation": {}}
    threads = recipe.threads or (1 if data.images[0].numel() <= places.SMALL else None)
    if state and begun >= total and not lacks_samples(folder, recipe, begun, total):
        progress.note(f"{folder.path} is finished: {begun} steps; --epochs extends it")
    else:
        try:
            task = build_task(recipe, data, progress, state and state["model"])
        except ValueError as error:
            where = f"{folder.run_json}: recipe: " if saved else ""
            raise RunError(f"{where}{error}") from error
        task.fast, path = places.fast_path(task, recipe.precision, devices, recipe.plain)
        mixed = recipe.precision == "bf16" and task.fast is None
        fabric = places.make_fabric(devices, mixed)  # refuses devices before a file is there
        _check_same_start(fabric, folder, [begun, total, facts["checksum"]])
        run = Run(recipe, data, facts, order, task, folder, progress, fabric, state)
        if fabric.is_global_zero:
            if saved.get("steps") != total:
                model = {**task.model.describe(), "parameters": task.model.parameter_count()}
                folder.write(recipe=asdict(recipe), data=facts, model=model, steps=total)
            if saved:
                folder.rewind_metrics(begun)
                progress.note(f"going on with {folder.path} at step {begun} of {total}")
            for line in filter(None, (*_first_words(recipe, data, order, new=not saved), path)):
                progress.note(line)
        with places.computing(tf32=recipe.precision in ("tf32", "bf16"), threads=threads):
            run.fit()
        state = asdict(run.at)
        figures = {"train": run.train, "validation": run.validation}
    if density and places.is_first_process():
        with places.computing(tf32=False, threads=threads):
            _keep_scores(folder, data.images[order.held], devices, progress)
    return {
        "preset": preset,
        "run": str(folder.path),
        "resumed_from": begun if saved else None,
        "epochs": -(-total // order.per_epoch),
        "steps": state["step"],
        "finished": state["step"] >= total,
        "steps_left_out": sum(row["kind"] == "left out" for row in folder.metrics()),
        "figure": (DensityTask if density else ClassificationTask).figures[0],
        **{name: state[name] for name in ("seconds", "best", "best_step")},
        **figures,
    }


def _load(recipe: Recipe, split: str) -> ImageData:
    name = data_and_kind(recipe.preset)[0]
    return load(name, split, recipe.data, size=recipe.size, grey=recipe.grey)


def _keep_scores(
    folder: RunFolder, images: Tensor, devices: places.Devices, progress: Progress
) -> None:
    """Scores of held-out images beside weights without, for `Flow.score`, if there are enough."""
    images = images if devices.cuda else images[:500]  # a CPU has no time for more
    wanting = [place for place in (folder.last, folder.best) if (place / WEIGHTS).is_file()]
    wanting = [place for place in wanting if not (place / SCORES).is_file()]
    known = dict[str, Any]()  # of equal weights: the same
    if not wanting or len(images) < FEWEST:
        return
    try:
        for place in wanting:
            if (key := sha256(place / WEIGHTS)) not in known:
                progress(f"measuring the scores of {len(images):,} held-out images: {place.name}")
                flow = Flow.load(place).to("cuda" if devices.cuda else "cpu")
                flow.keep_scores(images)
                known[key] = flow.scores
            save_scores(place, known[key])
    except KeyboardInterrupt:
        words = "the run is finished, but its scores of held-out images, which mintnet score needs"
        raise KeyboardInterrupt(f"{words}, are missing; --resume measures them") from None


def _recipe(
    preset: str, folder: RunFolder, resume: bool, options: dict[str, Any]
) -> tuple[Recipe, dict[str, Any]]:
    """The recipe, and what run.json says if there is a run to go on with."""
    recipe = Recipe.of(preset, **options)  # names mistakes before anything else
    if folder.is_empty():
        if recipe.init is not None:
            recipe = Recipe.of(preset, **{**options, **options_of_model(preset, options)})
        if recipe.label_weight and not recipe.labels:
            words = "give --labels as well, or leave --label-weight out"
            raise RunError(f"a label weight is for a model of labels: {words}")
        return recipe, {}
    if not resume:
        run = folder.run_json.is_file()
        words = "holds a run; go on with it with --resume, or" if run else "is not empty;"
        raise RunError(f"{folder.path} {words} {OTHER}")
    saved = folder.read()
    try:
        before = check(saved["recipe"], Recipe, "recipe")
    except ValueError as error:
        raise RunError(f"{folder.run_json}: {error}; {OTHER}") from error
    return before.resumed(str(folder.path), preset, **options), saved


def _extended(
    folder: RunFolder, recipe: Recipe, per_epoch: int, saved: dict[str, Any], now: dict[str, Any]
) -> Recipe:
    """The recipe of a run that goes on, no shorter and on the same images, with enough epochs."""
    was, before = saved["data"], saved["steps"]
    for name in ("images", "shape", "levels", "checksum"):
        if was.get(name) != now[name]:
            other = f"other images ({name} {was.get(name)}, now {now[name]})"
            raise RunError(f"{folder.path} was begun with {other}; give the same --data or {OTHER}")
    if recipe.max_steps > before:
        recipe = replace(recipe, epochs=max(recipe.epochs, -(-recipe.max_steps // per_epoch)))
    if (steps := recipe.steps(per_epoch)) < before:
        words = f"{folder.path} was begun for {before} steps; a run can be extended, not shortened"
        raise RunError(f"{words} to {steps}: leave out --epochs and --max-steps, or {OTHER}")
    return recipe


def _first_words(recipe: Recipe, data: ImageData, order: Order, new: bool) -> Iterator[str]:
    test = ""
    if recipe.preset == "folder":
        test = f"{len(_load(recipe, 'test')):,} test, "
        if (size := data.shape[1]) % 2 and recipe.kind == "deep" and not recipe.layers:
            words = f"warning: {size} × {size} pixels do not halve evenly: the network has 1 stage"
            yield f"{words}; --size {size + 1} would give it 2"
    yield f"{data.name}: {len(data):,} training, {test}{len(order.held):,} held out of training"
    if new and recipe.init is not None:
        words = f"started from {recipe.init}: its network; {recipe.validation:g} of the images"
        yield f"{words} held out; the learning rate rises over {recipe.warmup} steps"


def _check_same_start(fabric: Any, folder: RunFolder, facts: list[int]) -> None:
    """Raise `RunError` where processes begin at other steps, or with other images."""
    every = fabric.all_gather(torch.tensor(facts, dtype=torch.float64, device=fabric.device))
    every = torch.as_tensor(every).reshape(-1, len(facts))
    if not bool((every == every[0]).all()):
        words = f"another step, length or checksum of images in {folder.path}: {every.tolist()}"
        raise RunError(f"some process finds {words}; share this folder and --data")

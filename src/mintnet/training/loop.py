"""`train`: one run, from its beginning or from where it was stopped, to its end."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from mintnet.data import ImageData
from mintnet.files import clear_scraps
from mintnet.training.build import build_task, options_of_model, size_warning
from mintnet.training.data import describe, held_out, load_images
from mintnet.training.devices import (
    Devices,
    chosen_precision,
    cpu_threads,
    fast_path,
    float32_math,
    is_first_process,
    make_fabric,
)
from mintnet.training.folder import RunError, RunFolder, disk_errors
from mintnet.training.progress import Progress
from mintnet.training.recipe import Recipe, data_and_kind
from mintnet.training.run import Run


def train(
    preset: str,
    run: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train a preset and return the run's figures.

    Args:
        preset: of `RECIPES`.
        run: the run folder; it must be new or empty, unless ``resume``.
        resume: go on with the run in the folder, or begin one if there is none; with a larger
            ``epochs`` or ``max_steps`` the run is extended.
        progress: is told how the run goes.
        **options: fields of `Recipe` that differ from the preset's; None means not given.

    Raises:
        ValueError: `RunError` and others of its kind, for what a user can mend.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     small = dict(pairs=(1,), filters=(2,), batch_size=32, max_steps=2, sample_every=0)
        ...     figures = train("digits", f"{folder}/run", **small)
        >>> figures["steps"], figures["finished"]
        (2, True)
    """
    folder, first = RunFolder(run), is_first_process()
    if options.get("data") is not None:  # the run may be used from elsewhere later
        options["data"] = str(Path(options["data"]).expanduser().absolute())
    progress = progress if first and progress is not None else Progress()
    try:
        with disk_errors(folder.path), _warnings_shown(progress):
            return _train(preset, folder, resume, progress, options, first)
    except (ValueError, KeyboardInterrupt) as error:
        if first:
            raise
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
        raise SystemExit(code) from None  # the first process says why
    finally:
        progress.stop()


def _train(
    preset: str,
    folder: RunFolder,
    resume: bool,
    progress: Progress,
    options: dict[str, Any],
    first: bool,
) -> dict[str, Any]:
    resume = resume or not first  # what the first process has written is no reason to refuse
    recipe, saved = _recipe(preset, folder, resume, options)
    name, _ = data_and_kind(preset)
    data = load_images(name, "train", recipe.data, size=recipe.size, grey=recipe.grey)
    facts = describe(name, data, recipe.data, recipe.size, recipe.grey)
    if saved:
        _same_images(folder, saved["data"], facts)
    state = folder.read_checkpoint() if saved else None
    devices = Devices(recipe.devices, recipe.nodes, recipe.accelerator)
    precision: Any = chosen_precision(recipe.precision, devices)
    recipe = replace(recipe, precision=precision)
    recipe = _extended(folder, recipe, data, saved)
    task = build_task(replace(recipe, init=None) if state else recipe, data)
    task.fast, words = fast_path(task, recipe.precision, devices, recipe.plain)
    run = Run(recipe, data, task, folder, progress, facts, state)
    if run.done >= run.total:
        progress.note(f"{folder.path} is finished: {run.done} steps; --epochs extends it")
        return run.figures(resumed_from=run.done)
    begun = run.done
    mixed = recipe.precision == "bf16" and task.fast is None
    fabric = make_fabric(devices, mixed)  # refuses devices before a file is there
    if first:
        content = {"recipe": recipe.to_dict(), "data": facts, "model": task.describe()}
        if saved is None or saved["steps"] != run.total:
            folder.write({**content, "steps": run.total})
        if saved:
            clear_scraps(folder.path)
            folder.rewind_metrics(begun)
            progress.note(f"going on with {folder.path} at step {begun} of {run.total}")
        for line in (*_first_words(recipe, data, saved), words):
            if line:
                progress.note(line)
    with (
        float32_math(tf32=recipe.precision in ("tf32", "bf16")),
        cpu_threads(recipe.threads, data.images[0].numel()),
    ):
        run.fit(fabric)
    return run.figures(resumed_from=begun if saved else None)


def _recipe(
    preset: str, folder: RunFolder, resume: bool, options: dict[str, Any]
) -> tuple[Recipe, dict[str, Any] | None]:
    """The recipe, and run.json if there is a run to go on with."""
    recipe = Recipe.of(preset, **options)  # names mistakes before anything else
    if not resume:
        folder.require_empty()
    if folder.is_empty():
        if recipe.init is not None:
            recipe = Recipe.of(preset, **{**options, **options_of_model(preset, options)})
        return recipe, None
    saved = folder.read()
    try:
        before = Recipe.from_dict(saved["recipe"])
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{folder.run_json} is damaged ({error}); name another folder with --run"
        ) from error
    return before.resumed(str(folder.path), preset, **options), saved


def _extended(
    folder: RunFolder, recipe: Recipe, data: ImageData, saved: dict[str, Any] | None
) -> Recipe:
    """The recipe with as many epochs as its steps need; a run that goes on is no shorter."""
    if saved is None:
        return recipe
    images = len(held_out(len(data), recipe.validation)[0])
    per_epoch = images // min(recipe.batch_size, images)
    if recipe.max_steps > saved["steps"]:
        recipe = replace(recipe, epochs=max(recipe.epochs, -(-recipe.max_steps // per_epoch)))
    if recipe.steps(per_epoch) < saved["steps"]:
        raise RunError(
            f"{folder.path} was begun for {saved['steps']} steps, not "
            f"{recipe.steps(per_epoch)}: a run can be extended, not shortened; resume it without "
            f"--epochs and --max-steps, or name another folder with --run"
        )
    return recipe


def _first_words(recipe: Recipe, data: ImageData, saved: dict[str, Any] | None) -> Iterator[str]:
    """What there is to say about the images and the network."""
    _, held = held_out(len(data), recipe.validation)
    test = ""
    if recipe.preset == "folder":
        shape = {"size": recipe.size, "grey": recipe.grey}
        test = f"{len(load_images('folder', 'test', recipe.data, **shape)):,} test, "
    yield f"{data.name}: {len(data):,} training, {test}{len(held):,} held out of training"
    if saved is None and recipe.init is not None:
        yield (
            f"started from {recipe.init}: its network; {recipe.validation:g} of the images held "
            f"out; the learning rate rises over {recipe.warmup} steps"
        )
    warning = size_warning(data.shape[1])
    if saved is None and recipe.preset == "folder" and recipe.pairs is None and warning:
        yield f"warning: {warning}"


def _same_images(folder: RunFolder, before: dict[str, Any], now: dict[str, Any]) -> None:
    for name in ("images", "shape", "levels", "checksum"):
        if before.get(name) != now[name]:
            raise RunError(
                f"{folder.path} was begun with other images ({name} {before.get(name)}, now "
                f"{now[name]}); give the same --data, or name another folder with --run"
            )


@contextmanager
def _warnings_shown(progress: Progress) -> Iterator[None]:
    """Warnings of the library as lines of the run, each once."""
    seen: list[str] = []
    logger, handler = logging.getLogger("mintnet"), logging.Handler(logging.WARNING)

    def show(record: logging.LogRecord) -> None:
        if (text := record.getMessage()) not in seen:
            seen.append(text)
            progress.note(text)

    handler.emit = show  # type: ignore[method-assign]
    if type(progress) is not Progress:  # it would log them again
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)

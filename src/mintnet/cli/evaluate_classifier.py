"""`mintnet evaluate` on a classifier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from mintnet.cli.output import check_output, console, write_picture

if TYPE_CHECKING:
    from mintnet.cli.evaluate import Evaluate


def evaluate_classifier(command: Evaluate) -> dict[str, Any]:
    """Accuracy, confusion, calibration and the most confident mistakes."""
    from mintnet.cli.classifier import open_classifier
    from mintnet.figures.classification import evaluation_picture
    from mintnet.training import Devices
    from mintnet.training.accuracy import evaluate_classifier as measure
    from mintnet.training.devices import is_first_process

    if command.draws != 1:
        raise ValueError(
            f"{command.model} is a classifier: its images get no noise, so --draws has no meaning"
        )
    path = command.out or Path("evaluation.png")
    check_output(path, [".png"])
    opened = open_classifier(command.model, "cpu")  # Lightning moves it
    data = opened.images(command.data, command.data_set, command.split)
    data = data if command.count is None else data.first(command.count)
    found = measure(
        opened.model,
        data,
        batch_size=command.batch_size,
        devices=Devices(command.devices, command.nodes, command.accelerator),
    )
    figures = {
        "model": command.model,
        "data": data.name,
        "split": command.split,
        "precision": str(opened.model.dtype).removeprefix("torch."),
        **found.to_dict(),
    }
    if not is_first_process():
        return figures
    names = opened.class_names(data.name)
    title = (
        f"{command.model}: {100 * found.accuracy:.2f} % of {len(data):,} {command.split} images "
        f"of {data.name} are right"
    )
    picture = evaluation_picture(found, data.images, data.levels, names, title)
    written, words = write_picture(picture, path)
    out = console()
    out.print(
        f"[bold]{100 * found.accuracy:.2f} % right[/] (± {100 * found.standard_error:.2f}), "
        f"{figures['errors']:,} mistakes in {len(data):,} {command.split} images of "
        f"{escape(data.name)}; cross entropy {found.nats:.4f} nats, calibration error "
        f"{100 * found.calibration.error:.2f} %"
    )
    table = Table(title="True class, and what it was called", title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(escape(name), justify="right")
    for name, row in zip(names, found.confusion.tolist(), strict=True):
        table.add_row(escape(name), *(str(count) if count else "·" for count in row))
    out.print(table)
    out.print(words)
    return {**figures, "picture": written}

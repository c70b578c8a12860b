"""`mintnet report` on a classifier."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mintnet.cli.output import check_output, console

if TYPE_CHECKING:
    from mintnet.cli.classifier import OpenClassifier
    from mintnet.cli.report import Report


def report_classifier(command: Report) -> dict[str, Any]:
    """One page about a classifier or a ResNet."""
    from mintnet.cli.classifier import open_classifier
    from mintnet.cli.info_classifier import classifier_facts
    from mintnet.cli.report import finish, run_facts
    from mintnet.figures.gather_classifier import gather_classifier

    out, opened = console(), open_classifier(command.model, command.device)
    path = command.out or _default_place(opened)
    check_output(path)
    data = opened.images(command.data, command.data_set, command.split)
    kind = "an invertible classifier" if opened.model.kind == "classifier" else "a ResNet"
    with out.status("measuring") as status:
        contents = gather_classifier(
            opened.model,
            data,
            f"{opened.label}: {kind} for {data.name}",
            opened.run,
            command.reconstructions,
            command.chosen_solver(),
            tell=lambda words: status.update(words),
        )
    contents.subtitle = (
        f"Weights: {opened.folder}; images: the {command.split} part of {data.name}, "
        f"{len(data):,} of them."
    )
    contents.facts = classifier_facts(opened.model)
    contents.configuration = {"model": opened.config, **run_facts(opened.run)}
    return finish(out, path, contents, [])


def _default_place(opened: OpenClassifier) -> Path:
    folder = opened.run or opened.folder
    mine = Path(opened.name).expanduser().exists() and os.access(folder, os.W_OK)
    return folder / "report.html" if mine else Path(f"{opened.label}-report.html")

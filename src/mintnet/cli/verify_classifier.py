"""`mintnet verify` on a classifier."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from mintnet.cli.command import FlawedResult
from mintnet.cli.output import console, progress

if TYPE_CHECKING:
    from mintnet.cli.verify import Verify
    from mintnet.figures.round_trip import RoundTrip


def verify_classifier(command: Verify) -> dict[str, Any]:
    """Features mapped back to images, in float64 and in float32, layer by layer."""
    import torch

    from mintnet.cli.classifier import open_classifier
    from mintnet.figures.round_trip import round_trip

    if command.count < 1:
        raise ValueError(f"--count is at least 1; got {command.count}")
    _refuse_plots(command)
    out = console()
    opened = open_classifier(command.model, command.device)
    model = opened.invertible
    data = opened.images(command.data, command.data_set, command.split)
    images = data.images[: command.count]
    trips = {}
    for name, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        with progress(out, f"features and back in {name}", len(images)) as tick:
            trips[name] = round_trip(model, images, dtype, command.chosen_solver(), tick=tick)
    print_trips(out, trips["float64"], trips["float32"])
    if trips["float32"].byte_exact < trips["float64"].byte_exact:
        out.print(
            "A certificate is about features. Their rounding grows on the way back, too much for "
            "float32 here: take float64 (clf.double()) to get pictures back."
        )
    figures = {
        "model": command.model,
        "data": data.name,
        "split": command.split,
        **{name: trip.to_dict() for name, trip in trips.items()},
    }
    failed = [
        f"{trip.images - trip.certified} of {trip.images} inversions in {name}"
        for name, trip in trips.items()
        if trip.certified < trip.images
    ]
    if failed:
        words = "use --solver auto" if command.solver != "auto" else "do not rely on these images"
        raise FlawedResult(
            f"{' and '.join(failed)} are not certified; the table says in which layers: {words}",
            figures,
        )
    return figures


def _refuse_plots(command: Verify) -> None:
    """Raise if options were given that are about curves, which a classifier has none of."""
    for field in fields(command):
        about_curves = field.name in ("divisors", "iterations", "time_limit", "out")
        if about_curves and getattr(command, field.name) != field.default:
            raise ValueError(
                f"{command.model} is a classifier, for which no curves are drawn, so "
                f"--{field.name.replace('_', '-')} has no meaning"
            )


def print_trips(out: Console, wide: RoundTrip, narrow: RoundTrip) -> None:
    """Both precisions side by side."""
    table = Table(title="Layer by layer, on the way back", title_justify="left")
    for name in ("layer", "what it is"):
        table.add_column(name, justify="right" if name == "layer" else "left")
    for name in ("steps", "residual", "float64", "×", "float32", "×", "failures"):
        table.add_column(name, justify="right")
    for row, other in reversed(list(zip(wide.layers, narrow.layers, strict=True))):
        failures = f"{row.failures} / {other.failures}"
        table.add_row(
            str(row.number),
            row.name.replace("MintLayer ", "").replace(", K = 1", ""),
            str(row.steps),
            f"{row.residual:.0e}",
            f"{row.error:.1e}",
            _times(row.amplification),
            f"{other.error:.1e}",
            _times(other.amplification),
            f"[red]{failures}[/]" if row.failures or other.failures else failures,
        )
    out.print(table)
    out.print(
        "float64, float32: the error there, root mean square of the difference to what entered the "
        "layer on the way up. ×: how much larger than one layer before.",
        style="dim",
    )
    for trip in (wide, narrow):
        whole = trip.certified == trip.images
        out.print(
            f"[bold]{trip.precision}[/]: [{'green' if whole else 'red'}]{trip.certified} of "
            f"{trip.images} certified[/] in every layer and end to end (residual "
            f"{trip.residual:.1e}); worst pixel off by {trip.worst_pixel_error:.1e} grey levels, "
            f"{trip.byte_exact} images back byte for byte; mean square error "
            f"{trip.mean_square_error:.1e}, padding energy {trip.padding_energy:.1e}"
        )


def _times(factor: float | None) -> str:
    return "" if factor is None else f"{factor:.2f}"

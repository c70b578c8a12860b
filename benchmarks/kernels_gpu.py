"""Hand-written kernels against compiled layers on a GPU: are they right, and do they pay?

    python benchmarks/kernels_gpu.py --out kernels.json [--parts chip step]

First each kernel is compared with the plain layer in float32: values, log-determinants and all
gradients. Then one layer's forward and backward pass, recorded as a CUDA graph, is timed: the
compiled plain layer, and the kernel. The on-chip kernels are tried in several ways of cutting their
work, and the best way of each kernel is taken. Last a whole step of training. Times are medians of
replays; errors are norms of differences over norms, the worst of all tensors.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from mintnet import MintLayer, kernels
from mintnet.bench.machine import commit
from mintnet.kernels.chip import Launch, Tuning, can_fuse, chip_layer, columns_of, tuning_for
from mintnet.kernels.mint import Prepared, mint_layer, prepared_layers
from mintnet.precision import true_float32

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))
from kernel_layers import errors, everything

CHIP = [(1, 28, 45), (4, 14, 11)]  # channels, height and width, filters

# Ways of cutting each kernel's work. The best of each column is taken; what does not fit drops out.
WAYS = [
    # first, second, inner, outer, weight: pixels, warps, stages
    ((64, 4, 1), (64, 4, 3), (64, 8, 2), (64, 8, 3), (64, 4, 3)),
    ((128, 8, 1), (128, 8, 2), (32, 4, 2), (32, 4, 2), (64, 8, 2)),
    ((64, 8, 1), (64, 8, 3), (64, 4, 1), (128, 8, 2), (128, 8, 2)),
    ((32, 4, 1), (128, 4, 3), (64, 8, 1), (64, 4, 2), (128, 4, 2)),
]
KERNELS = ("first", "second", "inner", "outer", "weight")

record: dict[str, Any] = {}


def note(out: Path, name: str, **entries: Any) -> None:
    """Add to the record, write it down, and say it."""
    record.setdefault(name, {}).update(entries)
    out.write_text(json.dumps(record, indent=1))
    said = ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in entries.items()
    )
    print(f"[{time.time() - BEGIN:5.0f} s] {name}: {said}", flush=True)


def attempt(out: Path, name: str, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function measures, or the beginning of its error."""
    try:
        found = function()
    except Exception as error:
        traceback.print_exc(limit=-3)
        lines = f"{type(error).__name__}: {error}".splitlines()[:3]
        note(out, name, failed=" | ".join(lines))
        torch.cuda.empty_cache()
        return {}
    note(out, name, **found)
    return found


def a_layer(channels: int, side: int, filters: int, upper: bool = False) -> MintLayer:
    """With the weights it starts with, moved a little, so that every mask and sign matters."""
    torch.manual_seed(0)
    layer = MintLayer(channels, filters, (side, side), upper)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return layer.to(DEVICE)


def check(function: Callable[..., Any], shape: tuple[int, int, int]) -> dict[str, Any]:
    """Errors of the kernel in float32 and bf16, and of the plain layer in bf16."""
    result: dict[str, Any] = {"error": 0.0, "error_bf16": 0.0, "error_plain_bf16": 0.0}
    for upper in (False, True):
        layer = a_layer(*shape, upper=upper)
        x = torch.randn(3, shape[0], shape[1], shape[1], device=DEVICE)
        with true_float32():
            exact = everything(mint_layer, layer, x, torch.float32)
        ways = [
            ("error", function, torch.float32, {"compile": False}),
            ("error_bf16", function, torch.bfloat16, {"compile": False}),
            ("error_plain_bf16", mint_layer, torch.bfloat16, {}),
        ]
        weights = prepared_layers([layer], torch.float32)[0]
        if function is chip_layer and not can_fuse(x, weights, layer.kernel_size, upper):
            result.pop("error", None)  # too large in float32
            ways.pop(0)
        for label, way, dtype, options in ways:
            with true_float32():
                found = errors(exact, everything(way, layer, x, dtype, **options))
            name = max(found, key=lambda key: found[key])
            result[label] = max(result[label], found[name])
            rounded = {key: float(f"{value:.1e}") for key, value in found.items()}
            result[f"{label}s_{'upper' if upper else 'lower'}"] = rounded
    return result


def passes(function: Callable[..., Any], layer: MintLayer, batch: int) -> Callable[[], Any]:
    """Both passes of one layer in bf16, with fixed weights, ready to be called again and again."""
    x = torch.randn(batch, *layer.event_shape, device=DEVICE, requires_grad=True)
    parts = prepared_layers([layer], torch.bfloat16)[0]
    weights = Prepared(*(part.detach().requires_grad_() for part in parts))
    rest = (layer.filters, layer.kernel_size, layer.ordering.upper)
    g_y = torch.randn(batch, *layer.event_shape, device=DEVICE)
    g_y = g_y.contiguous(memory_format=torch.channels_last)
    g_log_det = torch.randn(batch, device=DEVICE)

    def run() -> tuple[Tensor, ...]:
        outputs = function(x, weights, *rest)
        return torch.autograd.grad(outputs, (x, *weights), (g_y, g_log_det))

    return run


def milliseconds(run: Callable[[], Any], replays: int = 20) -> float:
    """The median of replays of a recorded run."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    times = []
    for number in range(replays + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end))
    del kept, graph
    return median(times)


def kernel_times(run: Callable[[], Any], calls: int = 5) -> dict[str, float]:
    """Microseconds of a call by kernel."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    found = {event.key: event.self_device_time_total / calls for event in profiled.key_averages()}
    return {k[:60]: round(v, 1) for k, v in sorted(found.items(), key=lambda i: -i[1]) if v > 0}


def tuned(
    layer: MintLayer, batch: int, until: float, ways: int | None = None
) -> tuple[Tuning, dict[str, Any]]:
    """The best way of each kernel by its own time on the device, of all ways or of one."""
    base = tuning_for(columns_of(layer.channels, layer.kernel_size, layer.ordering.upper))
    best: dict[str, tuple[float, Launch]] = {}
    seen: dict[str, Any] = {}

    def tried(trial: Tuning) -> bool:
        try:
            times = kernel_times(passes(partial(chip_layer, tuning=trial), layer, batch))
        except Exception as error:
            torch.cuda.empty_cache()
            seen[str([tuple(getattr(trial, kernel)) for kernel in KERNELS])] = str(error)[:80]
            return False
        for kernel in KERNELS:
            taken, launch = times[f"{kernel}_kernel"], getattr(trial, kernel)
            seen[f"{kernel} {tuple(launch)}"] = taken
            if kernel not in best or taken < best[kernel][0]:
                best[kernel] = (taken, launch)
        return True

    tried(base)
    for way in WAYS if ways is None else [WAYS[ways]]:
        cuts = {kernel: Launch(*cut) for kernel, cut in zip(KERNELS, way, strict=True)}
        if time.time() < until and not tried(base._replace(**cuts)):
            for kernel, launch in cuts.items():  # one of them does not fit
                if time.time() < until:
                    tried(base._replace(**{kernel: launch}))
    return base._replace(**{kernel: launch for kernel, (_, launch) in best.items()}), seen


def chip_entry(out: Path, shape: tuple[int, int, int], batches: list[int], seconds: float) -> None:
    name = f"chip {shape[0]}x{shape[1]}x{shape[1]} K={shape[2]}"
    attempt(out, name, lambda: check(chip_layer, shape))
    layer = a_layer(*shape)
    best: Tuning | None = None
    try:
        best, seen = tuned(layer, batches[0], time.time() + seconds)
        note(out, name, tuning={k: list(getattr(best, k)) for k in KERNELS}, tried=seen)
    except Exception as error:
        note(out, name, tuning_error=str(error).splitlines()[:3])
    for batch in batches:
        timings(out, name, layer, batch, partial(chip_layer, tuning=best), chip_layer)


def timings(
    out: Path,
    name: str,
    layer: MintLayer,
    batch: int,
    function: Callable[..., Any],
    untuned: Callable[..., Any],
) -> None:
    """Plain and kernel, and where the kernel's time goes, for one batch size."""
    ways = {
        "plain_ms": kernels.compiled(mint_layer),
        "kernel_ms": function,
        "untuned_ms": untuned,
    }
    for label, way in ways.items():
        attempt(out, name, partial(one_timing, f"{label}_{batch}", way, layer, batch))
    if batch == BATCHES[0]:
        attempt(out, name, partial(one_profile, function, layer, batch))


def one_timing(label: str, way: Callable[..., Any], layer: MintLayer, batch: int) -> dict[str, Any]:
    return {label: milliseconds(passes(way, layer, batch))}


def one_profile(way: Callable[..., Any], layer: MintLayer, batch: int) -> dict[str, Any]:
    return {"microseconds": dict(list(kernel_times(passes(way, layer, batch)).items())[:14])}


def whole_step(preset: str, batch: int, most: int) -> dict[str, Any]:
    """The step of `mintnet train`, with layers of up to so many channels on the chip."""
    from mintnet.bench.steps import Way, make_step
    from mintnet.models import Flow, fast
    from mintnet.training.recipe import recipe_for

    torch.manual_seed(0)
    flow = Flow.preset(preset)
    images = torch.randint(0, 256, (batch, *flow.shape), dtype=torch.uint8, device=DEVICE)
    fast.ON_CHIP_CHANNELS = most
    fast._tried.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = make_step(Way("step", "recorded", "bf16"), flow, images, recipe_for(preset))
    times = []
    for number in range(13):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        loss = step()
        end.record()
        end.synchronize()
        if number >= 3:
            times.append(begin.elapsed_time(end))
    name = f"chip{most}" if most else "plain"
    return {
        f"{name}_kinds_on_chip": sum(fast._tried.values()) if most else 0,  # of shape and ordering
        f"{name}_ms": median(times),
        f"{name}_images_per_second": 1e3 * batch / median(times),
        f"{name}_loss": float(loss),
        f"{name}_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def table() -> None:
    """A line for each layer and batch."""
    names = ("plain ms", "kernel ms", "ratio", "error", "bf16", "plain bf16")
    print(f"\n{'layer':26} {'batch':>5} " + " ".join(f"{name:>10}" for name in names))
    for name, found in record.items():
        for batch in BATCHES:
            plain, kernel = (found.get(f"{way}_ms_{batch}") for way in ("plain", "kernel"))
            if plain is None and kernel is None:
                continue
            none = float("nan")
            ratio = plain / kernel if plain and kernel else none
            cells = [f"{plain or none:10.3f}", f"{kernel or none:10.3f}", f"{ratio:10.2f}"]
            keys = ("error", "error_bf16", "error_plain_bf16")
            cells += [f"{found.get(key, none):10.1e}" for key in keys]
            print(f"{name:26} {batch:5} " + " ".join(cells))
        if name.startswith("step"):
            print(name, {k: round(v, 3) for k, v in found.items() if isinstance(v, float)})


def warm(task: str, batches: list[int]) -> None:
    """Run what will be measured, so that compilers have it in their caches."""
    if task.isdigit():
        for shape in CHIP:
            tuned(a_layer(*shape), batches[0], float("inf"), int(task))
    elif task == "step":
        for most in (4, 0):
            whole_step("mnist", batches[0], most)
    else:
        for shape in CHIP:
            for batch in batches:
                passes(kernels.compiled(mint_layer), a_layer(*shape), batch)()


def warm_all(args: argparse.Namespace) -> None:
    """All of that at once, each in a process of its own; what fails there will be seen later."""
    tasks = list(args.parts)
    if "chip" in tasks:
        tasks += [str(number) for number in range(len(WAYS))]
    batches = [str(batch) for batch in args.batches]
    command = [sys.executable, __file__, "--batches", *batches, "--warm"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([*command, task], **quiet) for task in tasks]
    until = time.time() + args.warm_seconds
    for process in started:
        try:
            process.wait(max(0.1, until - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("kernels.json"))
    parser.add_argument("--parts", nargs="+", default=["chip", "step"])
    parser.add_argument("--batches", type=int, nargs="+", default=[512])
    parser.add_argument("--tuning-seconds", type=float, default=20.0, help="for each layer")
    parser.add_argument("--warm-seconds", type=float, default=120.0, help="compiling; 0 for none")
    parser.add_argument("--warm", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    BATCHES[:] = args.batches
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    if args.warm:
        warm(args.warm, args.batches)
        return
    record.update(command=shlex.join(["python", *sys.argv]), commit=commit())
    note(args.out, "machine", device=torch.cuda.get_device_name(), torch=torch.__version__)
    if args.warm_seconds:
        warm_all(args)
        note(args.out, "machine", compiled_after_s=time.time() - BEGIN)
    if "chip" in args.parts:
        for shape in CHIP:
            chip_entry(args.out, shape, args.batches, args.tuning_seconds)
    if "step" in args.parts:
        for most in (4, 1, 0):
            run = partial(whole_step, "mnist", args.batches[0], most)
            attempt(args.out, f"step mnist {args.batches[0]}", run)
    table()


BEGIN = time.time()
DEVICE = "cuda"
BATCHES = [512]

if __name__ == "__main__":
    main()

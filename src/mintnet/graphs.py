"""CUDA graphs: capture what a function launches on a GPU once, replay it in one launch."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger(__name__)
_pools: dict[torch.device, Any] = {}

lock = threading.RLock()
"""Held around capture and replay: graphs of one device share their memory."""

Output = TypeVar("Output")


def is_capturing(x: Tensor) -> bool:
    """Whether no value can be read: a CUDA graph is captured, or torch compiles or exports."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


def capture(
    run: Callable[[], Output],
    device: torch.device,
    state: Callable[[], Sequence[Tensor]] = tuple,
    warm_ups: int = 3,
) -> Callable[[], Output]:
    """``run`` as a function that replays a CUDA graph and returns the same output tensors.

    ``run`` takes its inputs from tensors that stay where they are and reads nothing back to the
    host. It runs ``warm_ups`` times before the capture, so that libraries have chosen algorithms.
    ``state()`` lists all tensors that it changes in place and that outlive a call: afterwards they
    are put back as they were, and those listed only then (the moments of an optimizer) set to 0.

    Where there is no GPU this is ``run`` itself, and where the capture fails too, with a warning.
    """
    if device.type != "cuda":
        return run
    with lock, torch.cuda.device(device), _convolutions_chosen_by_timing():
        before = [(tensor, tensor.detach().clone()) for tensor in state()]
        known = {tensor.data_ptr() for tensor, _ in before}
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(warm_ups):
                run()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        pool = _pools.setdefault(device, torch.cuda.graph_pool_handle())
        try:
            with (
                _generator_restored(device),
                torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"),
            ):
                output = run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            _log.warning("no CUDA graph could be captured, so steps are slower (%s)", reason)
            return run
        finally:
            with torch.no_grad():
                for tensor, value in before:
                    tensor.detach().copy_(value)
                for tensor in state():
                    if tensor.data_ptr() not in known:
                        tensor.detach().zero_()

    def replay() -> Output:
        with lock:
            graph.replay()
        return output

    return replay


@contextmanager
def _generator_restored(device: torch.device) -> Iterator[None]:
    """If a capture fails, torch (2.11) leaves the generator capturing, and refuses ``randn``."""
    try:
        yield
    except BaseException:
        index = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())  # a copy is not capturing
        raise


@contextmanager
def _convolutions_chosen_by_timing() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before

"""Whole steps of training, in each way that is compared."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mintnet.bench.textbook import textbook_net
from mintnet.data import ImageData
from mintnet.models import Flow
from mintnet.models.fast import fast_transform, why_not_fast
from mintnet.models.noise import uniform_noise
from mintnet.training.fast import has_compiler, why_not_compiled
from mintnet.training.plan import Plan
from mintnet.training.recipe import Recipe

RATE = 1e-6
"""Of learning: the weights hardly move, so that every step has the same work."""

TEXTBOOK = ("textbook", "two-sums")
"""Kinds of ways that ours are compared with."""

Step = Callable[[], Tensor]
"""One step of training; gives the loss, which waits on the device."""


@dataclass(frozen=True)
class Way:
    """How a step is computed.

    Attributes:
        name: for people.
        kind: ``textbook`` (all K × K products of Eq. 3), ``two-sums`` (the same with slopes summed
            in turn), ``plain``, ``compiled`` (by torch.compile, on a CPU) or ``recorded`` (the
            fast path, its step as one CUDA graph).
        precision: of products: ``float32``, ``tf32`` or ``bf16``.
    """

    name: str
    kind: str
    precision: str = "float32"

    @property
    def dtype(self) -> torch.dtype:
        """Of what is multiplied."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32


def ways_for(flow: Flow, device: torch.device, compile: bool = True) -> list[Way]:
    """What is compared on a device: textbook versions, and ours as far as it goes there.

    Examples:
        >>> [way.name for way in ways_for(Flow.preset("digits"), torch.device("cpu"), False)]
        ['textbook', 'textbook, two sums', 'ours']
    """
    fast = not why_not_fast(flow.net)
    if device.type != "cuda":
        compiled = [Way("ours, compiled", "compiled")]
        more = compiled if compile and fast and has_compiler() else []
        textbook = [Way("textbook", "textbook"), Way("textbook, two sums", "two-sums")]
        return [*textbook, Way("ours", "plain"), *more]
    ways = [
        Way("textbook, float32", "textbook"),
        Way("textbook, TF32", "textbook", "tf32"),
        Way("textbook, two sums, TF32", "two-sums", "tf32"),
        Way("ours, float32", "plain"),
        Way("ours, TF32", "plain", "tf32"),
    ]
    if fast:
        precision = "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float32"
        how = "" if not why_not_compiled() else "not compiled, "
        ways.append(Way(f"ours, fast, {how}{precision}", "recorded", precision))
    return ways


def chosen_ways(ways: list[Way], words: Sequence[str]) -> list[Way]:
    """Those with one of the words in their names; every word must be in one.

    Examples:
        >>> ways = [Way("textbook", "textbook"), Way("ours", "plain")]
        >>> [way.name for way in chosen_ways(ways, ["our"])]
        ['ours']
        >>> chosen_ways(ways, ["fast"])
        Traceback (most recent call last):
        ValueError: no way here has 'fast' in its name; there are 'textbook', 'ours'
    """
    names = ", ".join(repr(way.name) for way in ways)
    for word in words or ("",):
        if not word or not any(word in way.name for way in ways):
            why = "" if has_compiler() else "; without a C++ compiler nothing is compiled on a CPU"
            said = f"no way here has {word!r} in its name" if word else "--ways needs a word"
            raise ValueError(f"{said}; there are {names}{why}")
    return [way for way in ways if any(word in way.name for word in words)]


def make_step(way: Way, flow: Flow, images: Tensor, recipe: Recipe) -> Step:
    """Dequantization, forward, backward, clipping and AMSGrad on one batch of images.

    The flow is copied to the device of the images.
    """
    flow = copy.deepcopy(flow).to(images.device).train()
    if way.kind == "recorded":
        return _recorded_step(way, flow, images, recipe)
    transform = {
        "textbook": partial(textbook_net, flow.net),
        "two-sums": partial(textbook_net, flow.net, two_sums=True),
        "plain": None,
        "compiled": partial(fast_transform, flow.net, dtype=way.dtype),
    }[way.kind]
    parameters = list(flow.parameters())
    optimizer = torch.optim.Adam(parameters, lr=RATE, eps=recipe.eps, amsgrad=True, fused=True)
    index = torch.arange(len(images), device=images.device)

    def step() -> Tensor:
        optimizer.zero_grad()
        noise = uniform_noise(0, 0, index, flow.shape)
        loss = -flow.log_density((images.float() + noise) / flow.levels, transform).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, recipe.clip or float("inf"))
        optimizer.step()
        return loss.detach()

    return step


def _recorded_step(way: Way, flow: Flow, images: Tensor, recipe: Recipe) -> Step:
    """The step of `mintnet train` on a GPU, with all that belongs to it.

    Without a GPU it is not recorded, nor compiled: then it only shows that it works. Nor
    is it compiled where training would not be.
    """
    from mintnet.training.module import TrainingModule
    from mintnet.training.recorded import RecordedStep
    from mintnet.training.task import DensityTask, FastPath

    cuda = images.is_cuda
    task = DensityTask(flow)
    task.fast = FastPath(way.dtype, compiled=cuda and not why_not_compiled())
    recipe = recipe.changed(batch_size=len(images), validation=0.0, learning_rate=RATE)
    data = ImageData("random", images.cpu(), levels=flow.levels)
    module = TrainingModule(task, data, Plan("random", recipe)).to(images.device)
    module.images = images
    module.average.to(images.device)
    run = RecordedStep(module, module.configure_optimizers(), record=cuda)
    places = torch.arange(len(images))

    def step() -> Tensor:
        return run(places, RATE)[0] / len(places)

    return step

"""Where the wavefront can be one GPU kernel: the functions that the kernel knows."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from mintnet.calculus.expression import Expression, Operation
from mintnet.calculus.linear import Convolution
from mintnet.kernels import HAS_TRITON, hand_written_allowed
from mintnet.kernels.wavefront import ACTIVATIONS, PLACES, Groups, MintWeights, wavefront_kernel
from mintnet.solvers.base import System
from mintnet.solvers.schedule import schedule

_log = logging.getLogger(__name__)
_impossible: set[torch.device] = set()


def fused_walk(
    system: System, root: Expression, z: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The kernel's answer and its Newton steps, (batch,); None where the plain walk must serve."""
    if not is_kernel_possible(z):
        return None
    layer = mint_weights(system, root, tuple(z.shape[1:]))
    if layer is None:
        return None
    shape = (z.shape[1], z.shape[2], z.shape[3])
    groups = groups_of(shape, layer.w2.shape[-1] // 2, layer.upper, z.device)
    try:
        with torch.cuda.device(z.device):
            return wavefront_kernel(layer, groups, z, scale)
    except torch.OutOfMemoryError:
        return None  # this once: the plain walk needs less, or says so
    except Exception as error:  # compilers and drivers have many ways to decline
        _give_up(z.device, f"{type(error).__name__}: {error}")
        return None


def is_kernel_possible(z: Tensor) -> bool:
    """Whether there is a kernel where z lies and for its precision; each layer may still decline.

    Examples:
        >>> is_kernel_possible(torch.zeros(1))
        False
    """
    if not z.is_cuda or z.dtype != torch.float32 or z.device in _impossible:
        return False
    if not HAS_TRITON:
        _give_up(z.device, "Triton is not installed")
        return False
    return hand_written_allowed()


def _give_up(device: torch.device, reason: str) -> None:
    _impossible.add(device)
    _log.warning("%s: the wavefront runs in plain tensor operations (%s)", device, reason)


def mint_weights(system: System, root: Expression, shape: tuple[int, ...]) -> MintWeights | None:
    """t ⊙ x + W³ h(W² h(W¹ x + b¹) + b²) + b³ recognised, with slopes known to be positive."""
    if root.operation is not Operation.ADD or len(shape) != 3:
        return None
    for scaled, third in (root.sources, root.sources[::-1]):
        chain = _linear_chain(third)
        if scaled.operation is Operation.SCALE and chain is not None:
            break
    else:
        return None
    (first, second, last), h, h2, x = chain
    if scaled.sources[0] is not x or not isinstance(scaled.constant, Tensor):
        return None
    name, name2 = type(h).__name__, type(h2).__name__
    sizes = {linear.weight.shape[-1] for linear in (first, second, last)}
    same = name == name2 and name in ACTIVATIONS and len(sizes) == 1
    if not same or first.weight.shape[1] != shape[0] or last.weight.shape[0] != shape[0]:
        return None
    if first.weight.shape[0] != second.weight.shape[0] or sizes == {1}:
        return None
    like = first.weight
    least, sign = (fact.to(like).expand(shape) for fact in system.slope_facts())
    if not bool(((least > 0) & (sign > 0)).all()):
        return None

    def bias(linear: Convolution) -> Tensor:
        return like.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias

    return MintWeights(
        t=scaled.constant.to(like).expand(shape),
        least=least,
        w1=first.weight,
        b1=bias(first),
        w2=second.weight,
        b2=bias(second),
        w3=last.weight,
        b3=bias(last),
        activation=name,
        negative_slope=getattr(h, "negative_slope", 0.0),
        upper=system.ordering.upper,
    )


def _linear_chain(node: Expression):  # type: ignore[no-untyped-def]
    """Linear ∘ h ∘ linear ∘ h ∘ linear, from the input: its three maps and two activations."""
    maps, functions = [], []
    for depth in range(5):
        if depth % 2 == 0:
            if not isinstance(node.linear, Convolution):
                return None
            maps.append(node.linear)
        else:
            if node.operation is not Operation.ELEMENTWISE:
                return None
            functions.append(node.function)
        node = node.sources[0]
    if node.operation is not Operation.INPUT:
        return None
    return maps[::-1], functions[1], functions[0], node


@lru_cache(maxsize=64)
def groups_of(
    shape: tuple[int, int, int], radius: int, upper: bool, device: torch.device
) -> Groups:
    """The entries of each level by channel, in groups of at most `PLACES`.

    Examples:
        >>> groups_of((1, 2, 3), 1, False, torch.device("cpu")).places[:, :2].tolist()
        [[0, -1], [1, -1], [2, 3], [4, -1], [5, -1]]
    """
    channels, places = [], []
    for level in schedule(shape, radius, upper).levels:
        for number, channel in enumerate(range(level.channels.start, level.channels.stop)):
            for part in level.places[number][level.valid[number]].split(PLACES):
                channels.append(channel)
                places.append(F.pad(part, (0, PLACES - len(part)), value=-1))
    return Groups(
        torch.tensor(channels, dtype=torch.int32, device=device),
        torch.stack(places).to(device, torch.int32),
    )

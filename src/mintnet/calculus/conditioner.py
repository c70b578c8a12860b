"""Networks of strictly earlier entries: what makes couplings and mixture layers members of F."""

from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mintnet.calculus.interval import INF, Interval
from mintnet.calculus.ordering import Ordering, checkerboard


class Conditioner(nn.Module, ABC):
    """A network of which each output entry depends on strictly earlier input entries alone.

    Its slope is therefore exactly 0, which is all that the calculus needs to know. A subclass makes
    sure of it by the way in which it is built, not by its weights; every proof of a function that
    uses it looks at its gradients (`check`). ``ordering`` is the order in which "earlier" is meant;
    ``outputs`` is how many values it gives for each entry.
    """

    ordering: Ordering
    outputs: int

    @abstractmethod
    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        """The outputs, each of the shape of ``data``."""

    @abstractmethod
    def levels(self, shape: tuple[int, ...]) -> Tensor:
        """A whole number for each entry: it depends on entries of lower numbers alone."""

    def value_range(self, shape: tuple[int, ...]) -> Interval:
        """Bounds of every output for all inputs and all weights, (1, *shape)."""
        return Interval.everything(shape)

    def check(self, shape: tuple[int, ...]) -> bool:
        """Whether outputs at random inputs are finite; ValueError if they see what is not earlier.

        Two inputs for each level are tried, of 64 levels at most, in evaluation mode:
        batch statistics and dropout have no inverse until then, but may be trained. Gradients are
        looked at; then all that is not earlier is changed, for what is read without a gradient.
        """
        levels, rank = self.levels(shape), self.ordering.rank(shape)
        if bool((levels.flatten()[rank.flatten().argsort()].diff() < 0).any()):
            raise ValueError(f"the levels of {self} do not rise along the {self.ordering}")
        state = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        own = next((w for w in state.values() if w.is_floating_point()), torch.empty(0))
        some = levels.unique()
        some = some[torch.linspace(0, len(some) - 1, min(len(some), 64)).long()].repeat(2)
        generator = torch.Generator().manual_seed(0)
        noise, other = torch.randn(2, len(some), *shape, generator=generator).to(own)
        some, levels = some.reshape(-1, *(1,) * len(shape)).to(own.device), levels.to(own.device)
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[]):
            copies = {name: tensor.detach().clone() for name, tensor in state.items()}
            data = noise.clone().requires_grad_()
            changed = torch.where(levels < some, noise, 30 * other)
            modes = {part: part.training for part in self.modules()}
            try:
                self.eval()
                runs = [functional_call(self, copies, (v,)) for v in (data, data, changed)]
            finally:
                for part, training in modes.items():
                    part.training = training
            found = [getattr(part, "shape", type(part)) for part in runs[0] or ()]
            if found != [data.shape] * self.outputs:
                expected = f"{self.outputs} tensors of shape {tuple(data.shape)}"
                raise ValueError(f"expected that {self} is {expected}; got {found}")
            outputs = [torch.stack(run) for run in runs]
            first, second, third = (run.nan_to_num() for run in outputs)
            total = (first * (levels == some)).sum() + 0 * data.sum()
            read = torch.autograd.grad(total, data)[0].abs() > 0
        if not torch.equal(first, second):
            raise ValueError(f"{self} is another one each time, so that nothing can be proved")
        differs = (levels == some) & ~torch.isclose(first, third, rtol=1e-3, atol=1e-5)
        if bool((read & (levels >= some)).any() or differs.any()):
            what = f"entries that are not earlier in the {self.ordering}"
            raise ValueError(f"{self} depends on {what}: its slope is not 0. Mask what it reads.")
        return all(bool(run.isfinite().all()) for run in outputs)

    def __str__(self) -> str:
        return f"the output of {type(self).__name__}"


class HalfConditioner(Conditioner):
    r"""Any network at all, between two masks: (1 − m) ⊙ N(m ⊙ x), with m = 1 on the first half.

    It reads the first half and writes to the second (``upper``: the other way round), so that each
    entry depends on strictly earlier ones. The network N may be anything that treats each sample on
    its own, from (batch, C, H, W) to (batch, outputs · C, H, W), or the same for vectors. The
    partition is "checkerboard", or "channel" for the first C // 2 channels (entries of a vector).

    Examples:
        >>> half = HalfConditioner(nn.Linear(4, 4), "channel", outputs=1)
        >>> half(torch.ones(1, 4))[0][0, :2]
        tensor([0., 0.], grad_fn=<...>)
    """

    def __init__(
        self, network: nn.Module, partition: str, upper: bool = False, outputs: int = 1
    ) -> None:
        super().__init__()
        if partition not in PARTITIONS:
            known = ", ".join(PARTITIONS)
            raise ValueError(f"unknown partition {partition!r}; choose one of {known}")
        self.network, self.partition, self.outputs = network, partition, outputs
        self.ordering = Ordering(upper, PARTITIONS[partition])

    def first(self, shape: tuple[int, ...], device: torch.device | str = "cpu") -> Tensor:
        """m: where the half is that is read. Boolean, broadcasts to ``shape``."""
        return _first(self.partition, self.ordering.upper, tuple(shape), torch.device(device))

    def forward(self, data: Tensor) -> tuple[Tensor, ...]:
        read = self.first(tuple(data.shape[1:]), data.device)
        found = self.network(data.masked_fill(~read, 0.0))
        expected = (data.shape[0], self.outputs * data.shape[1], *data.shape[2:])
        if tuple(found.shape) != expected:
            wanted = f"{self.outputs} outputs for each entry, {expected}"
            raise ValueError(f"the network of a coupling gives {wanted}; got {tuple(found.shape)}")
        return tuple(part.masked_fill(read, 0.0) for part in found.chunk(self.outputs, 1))

    def levels(self, shape: tuple[int, ...]) -> Tensor:
        return (~self.first(shape)).long().expand(shape)

    def value_range(self, shape: tuple[int, ...]) -> Interval:
        bound = torch.full((1, *shape), INF).double().masked_fill(self.first(shape), 0.0)
        return Interval.of(-bound, bound)


# The ordering that each partition belongs to: earlier channels come first in the raster.
PARTITIONS = {"checkerboard": "checkerboard", "channel": "raster"}


@lru_cache(maxsize=128)
def _first(partition: str, upper: bool, shape: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # it is kept, and must serve in training too
        if partition == "checkerboard":
            earlier = checkerboard(shape) == 0
        else:
            earlier = torch.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)) < shape[0] // 2
        return (~earlier if upper else earlier).to(device)


class MonotoneMap(ABC):
    """yᵢ = g(xᵢ; θᵢ), increasing in xᵢ, with θᵢ any function of strictly earlier entries of x.

    The diagonal of its Jacobian is ∂g/∂xᵢ, whatever θ is. A subclass makes sure by its formula that
    g is increasing and takes every real value, and by the way in which it is built that θᵢ depends
    on earlier entries alone, in the sense of its ``ordering``.
    """

    ordering: Ordering

    @abstractmethod
    def value_and_slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """g(xᵢ; θᵢ(x)) and ∂g/∂xᵢ, both of the shape of x."""

    @abstractmethod
    def slope_range(self, shape: tuple[int, ...]) -> Interval:
        """Bounds of ∂g/∂xᵢ for all inputs, (1, *shape)."""

    @abstractmethod
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything that g and θ are computed from: with a NaN in it nothing is proved."""

    def __str__(self) -> str:
        return type(self).__name__

"""Flows of zuko and nflows: the same samples in fewer passes, verified, or an error."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from mintnet import Flow, InversionError, accelerate

nflows = pytest.importorskip("nflows")
from nflows import distributions, flows, transforms  # noqa: E402

D, C = 12, 3

ZUKO: dict[str, Callable[[Any], nn.Module]] = {
    "maf": lambda z: z.MAF(D, transforms=2),
    "maf-context": lambda z: z.MAF(D, C, transforms=2, randperm=True),
    "coupling-as-passes": lambda z: z.MAF(D, transforms=2, passes=2),
    "nsf": lambda z: z.NSF(D, transforms=2),
    "nsf-context": lambda z: z.NSF(D, C, transforms=2),
    "circular": lambda z: z.NCSF(D, transforms=2),
    "naf-context": lambda z: z.NAF(D, C, transforms=1),
    "unaf": lambda z: z.UNAF(D, transforms=1, signal=4),
    "sums-of-squares": lambda z: z.SOSPF(D, transforms=2),
    "bernstein": lambda z: z.BPF(D, transforms=2),
}


def nflows_flow(*layers: nn.Module, embedding: nn.Module | None = None) -> nn.Module:
    composite = transforms.CompositeTransform(layers)
    return flows.Flow(composite, distributions.StandardNormal([D]), embedding)


def spline(context: int | None = None) -> nn.Module:
    return transforms.MaskedPiecewiseRationalQuadraticAutoregressiveTransform(
        D, 16, context, num_bins=4, tails="linear", tail_bound=3.0
    )


def affine(context: int | None = None, **options: Any) -> nn.Module:
    return transforms.MaskedAffineAutoregressiveTransform(D, 16, context, **options)


NFLOWS: dict[str, Callable[[], nn.Module]] = {
    "maf": lambda: flows.MaskedAutoregressiveFlow(D, 16, 2, 2, batch_norm_between_layers=True),
    "splines": lambda: nflows_flow(spline(), transforms.RandomPermutation(D), spline()),
    "mixed-context": lambda: nflows_flow(
        affine(C),
        transforms.LULinear(D),
        transforms.CompositeTransform([transforms.ReversePermutation(D), spline(C)]),
        embedding=nn.Linear(5, C),
    ),
}


def louder(flow: nn.Module, factor: float) -> nn.Module:
    """The flow in float64 with larger weights: far from the identity, and dependent on order."""
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.mul_(factor)
    return flow.double().eval()


@pytest.mark.parametrize("name", ZUKO)
def test_zuko_samples_are_those_of_the_library(zuko, name: str) -> None:
    flow = ZUKO[name](zuko.flows).eval()
    fast, before = accelerate(flow), copy.deepcopy(flow.state_dict())
    given = (torch.randn(4, C),) if "context" in name else ()
    torch.manual_seed(1)
    expected = flow(*given).sample((5, 2))
    torch.manual_seed(1)
    found = fast(*given).sample((5, 2))
    assert found.shape == (5, 2, *((4,) if given else ()), D)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    x, log_prob = fast(*given).rsample_and_log_prob((3,))
    torch.testing.assert_close(log_prob, flow(*given).log_prob(x), rtol=1e-4, atol=1e-3)
    assert torch.equal(fast(*given).log_prob(x), flow(*given).log_prob(x))
    assert all(torch.equal(a, before[k]) for k, a in flow.state_dict().items())


@pytest.mark.parametrize("name", NFLOWS)
def test_nflows_samples_are_those_of_the_library(name: str) -> None:
    flow = NFLOWS[name]()
    flow.log_prob(*((torch.randn(64, D), torch.randn(64, 5))[: 1 + ("context" in name)]))
    fast = accelerate(flow.eval())
    given = (torch.randn(4, 5),) if "context" in name else ()
    with torch.no_grad():
        torch.manual_seed(1)
        expected, log_prob = flow.sample_and_log_prob(6, *given)
        torch.manual_seed(1)
        found, other = fast.sample_and_log_prob(6, *given)
        torch.manual_seed(1)
        again = fast.sample(6, *given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(other, log_prob, rtol=1e-4, atol=1e-3)
    assert torch.equal(found, again) and type(fast) is type(flow)
    x = torch.randn(4, D)
    assert torch.equal(fast.log_prob(x, *given), flow.log_prob(x, *given))
    assert {id(p) for p in fast.parameters()} == {id(p) for p in flow.parameters()}


def test_a_distribution_and_the_short_form(zuko) -> None:
    flow = zuko.flows.MAF(D)
    made = accelerate(flow()), accelerate(flow)
    drawn = []
    for fast in made:
        torch.manual_seed(1)
        drawn.append(fast.sample((3,)))
    assert torch.equal(*drawn) and drawn[0].shape == (3, D)
    assert torch.equal(made[1].log_prob(drawn[0]), flow().log_prob(drawn[0]))
    assert made[1].rsample((2,)).requires_grad


def counted(flow: nn.Module, kind: str) -> list[int]:
    """Rows of each evaluation of the network, from now on."""
    rows: list[int] = []
    for module in flow.modules():
        if type(module).__name__ == kind:
            module.register_forward_hook(lambda m, given, out: rows.append(len(given[0])))
    return rows


def test_it_stops_sample_by_sample() -> None:
    torch.manual_seed(0)
    flow = nflows_flow(affine()).eval()
    rows = counted(flow, "MADE")
    with torch.no_grad():
        accelerate(flow).sample(500)
    assert len(rows) < D and rows[0] == 1  # the first pass is the same for all
    assert min(rows[1:-1]) < 500 == rows[-1]  # the residual check takes all


class Neighbours(nn.Module):
    """Parameters of an affine layer: scale 1, and a shift by a function of the entry before."""

    def __init__(self, function: Callable[[Tensor], Tensor], gain: float) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", gain * torch.eye(D).roll(1, 1).triu())

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        shift = self.function(x) @ self.weight
        return torch.stack([torch.full_like(x, 0.5397), shift], 2).flatten(1)


def neighbours(function: Callable[[Tensor], Tensor], gain: float) -> nn.Module:
    flow = nflows_flow(affine())
    flow._transform._transforms[0].autoregressive_net = Neighbours(function, gain)
    return flow.eval()


def test_all_passes_where_they_are_needed() -> None:
    flow = neighbours(lambda x: x, 2.0).double()
    rows = counted(flow, "Neighbours")
    z = torch.randn(7, D, dtype=torch.float64)
    found = accelerate(flow)._transform.inverse(z)[0]
    assert len(rows) == D + 1
    torch.testing.assert_close(found, flow._transform.inverse(z)[0], rtol=1e-10, atol=1e-10)


def test_overflow_on_the_way_does_no_harm() -> None:
    """Entries grow by 1e8 in each pass until those before them are solved; 0 · ∞ is not a number.

    The library does not get over it.
    """
    flow = neighbours(lambda x: (1 - x).relu(), 1e8)
    x = 1.1 + torch.rand(3, D)  # here shifts are 0
    z = flow._transform(x)[0]
    assert flow._transform.inverse(z)[0].isnan().any()
    torch.testing.assert_close(accelerate(flow)._transform.inverse(z)[0], x)


@pytest.mark.parametrize("kind", ["MAF", "NSF", "BPF"])
def test_zuko_gradients(zuko, kind: str) -> None:
    """Of noise and context by gradcheck, of a weight by differences."""
    flow = louder(getattr(zuko.flows, kind)(4, 2, transforms=2, hidden_features=(8,)), 1.5)
    fast = accelerate(flow)
    z, c = torch.randn(2, 4).double(), torch.randn(2, 2).double()
    inputs = z.clone().requires_grad_(), c.clone().requires_grad_()
    assert gradcheck(lambda z, c: fast(c).transform.inv(z), inputs, fast_mode=True)
    weight = flow.transform.transforms[0].hyper[-1].bias
    fast(c).transform.inv(z).sin().sum().backward()
    with torch.no_grad():
        for index in range(4):
            ends = []
            for step in (1e-5, -2e-5):
                weight[index] += step
                ends.append(fast(c).transform.inv(z).sin().sum().item())
            weight[index] += 1e-5
            assert abs((ends[0] - ends[1]) / 2e-5 - weight.grad[index]) < 1e-6


def test_nflows_gradients_of_noise_and_weights() -> None:
    flow = louder(nflows_flow(affine(), transforms.ReversePermutation(D), spline()), 1.2)
    fast, names = accelerate(flow)._transform, [n for n, _ in flow.named_parameters()]
    z = torch.randn(3, D).double().requires_grad_()
    assert gradcheck(lambda z: fast.inverse(z)[0], z, fast_mode=True)
    chosen = [p for n, p in zip(names, flow.parameters(), strict=True) if "final_layer.b" in n]
    found = torch.autograd.grad(fast.inverse(z)[0].sin().sum(), [z, *chosen])
    expected = torch.autograd.grad(flow._transform.inverse(z)[0].sin().sum(), [z, *chosen])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def test_it_raises_where_the_layer_is_not_autoregressive() -> None:
    flow = nflows_flow(affine()).eval()
    made = flow._transform._transforms[0].autoregressive_net
    with torch.no_grad():
        for module in made.modules():
            if hasattr(module, "mask"):
                module.mask.fill_(1.0)
                module.weight.mul_(8.0)
    with pytest.raises(InversionError, match=r"an nflows flow: .* not verified"):
        accelerate(flow).sample(20)


def test_it_raises_where_the_scalar_inverse_ends_at_a_bound(zuko) -> None:
    """The library's own samples are wrong here, and it does not say so."""
    flow = zuko.flows.SOSPF(D, transforms=1)
    z = torch.full((2, D), 1e6)
    assert (flow().transform(flow().transform.inv(z)) - z).abs().max() > 1e4
    with pytest.raises(InversionError, match="a zuko flow"):
        accelerate(flow)().transform.inv(z)


def test_what_is_no_autoregressive_flow_is_refused(zuko, raises_with) -> None:
    z, affine_only = zuko.flows, flows.SimpleRealNVP(D, 8, 1, 1)
    inverse = zuko.lazy.Flow(z.MAF(D).transform.inv, z.MAF(D).base)
    for flow in (z.NICE(D), z.GF(D), z.CNF(D), z.RealNVP(D)(), affine_only, inverse):
        with raises_with(ValueError, type(flow).__name__, "no autoregressive layer"):
            accelerate(flow)
    for thing in (Flow.preset("digits"), nn.Linear(2, 2), z.GMM(2), z.MAF, None, 3):
        with raises_with(ValueError, "accelerate takes a flow of zuko or nflows; got"):
            accelerate(thing)


def test_modes_and_precisions_that_cannot_be_verified_are_refused(raises_with) -> None:
    for options in ({"dropout_probability": 0.5}, {"use_batch_norm": True}):
        flow = nflows_flow(affine(**options))
        with raises_with(ValueError, "in training mode; call flow.eval()"):
            accelerate(flow).sample(2)
        assert accelerate(flow.eval()).sample(2).shape == (2, D)
    with raises_with(ValueError, "float32 or float64", "float16"):
        accelerate(flow)._transform.inverse(torch.zeros(2, D).half())

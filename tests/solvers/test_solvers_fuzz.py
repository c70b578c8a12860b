"""All solvers end, and are right, on layers that nobody has chosen."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mintnet import Auto, Bisection, MintLayer, Wavefront
from registry import HARD, trained_layer

FUZZ = settings(max_examples=25)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


def complaints(layer: MintLayer, x: torch.Tensor) -> list[str]:
    """What a solver verifies is right: f(x) is z, so that x is the one that z is the image of."""
    z = layer(x)[0].detach()
    found = []
    for solver in (Bisection(), Wavefront(), Auto()):
        solution = layer.solve(z, solver)
        gap = (layer(solution.value)[0] - z).abs().flatten(1).amax(1)
        if bool((solution.converged & (gap > 1e-10 * z.abs().flatten(1).amax(1))).any()):
            found.append(f"{solver} verifies what is not z")
        if not bool(solution.converged.all()):
            found.append(f"{solver} does not verify: {solution.message}")
    return found


@FUZZ
@given(
    channels=st.integers(1, 2),
    filters=st.integers(1, 3),
    size=sizes,
    upper=st.booleans(),
    activation=st.sampled_from(["elu", "tanh", "sigmoid", "softplus", "leaky_relu"]),
    kernel=st.sampled_from([1, 3, 5]),
    weights=st.floats(-2, 0.7),
    spread=st.floats(-1, 1.3),
    seed=st.integers(0, 2**16),
)
def test_random_layers(
    channels, filters, size, upper, activation, kernel, weights, spread, seed
) -> None:
    torch.manual_seed(seed)
    layer = MintLayer(channels, filters, size, upper, activation, kernel).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=10**weights)
    x = 10**spread * torch.randn(2, channels, *size, dtype=torch.float64)
    assert complaints(layer, x) == []


@FUZZ
@given(index=st.integers(0, 39), size=sizes, seed=st.integers(0, 2**16))
@example(index=HARD[0], size=(4, 3), seed=0)
@example(index=HARD[1], size=(4, 3), seed=0)
def test_trained_layers(index, size, seed) -> None:
    layer = trained_layer(index, size if index < 12 else (1, 2) if index < 24 else (1, 1))
    torch.manual_seed(seed)
    assert complaints(layer, 24 * torch.rand(2, *layer.event_shape, dtype=torch.float64) - 12) == []

"""A density model as an ONNX file, checked with onnxruntime before it is left behind."""

import copy
import logging
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from mintnet.files import whole_file
from mintnet.models.flow import Flow

INPUTS, OUTPUTS = ("x", "labels"), ("log_prob", "z")
TOLERANCE = 1e-5


class Density(nn.Module):
    """What is exported: from dequantized pixels (and labels of their classes) to log p and z.

    Shapes: x (batch, C, H, W) in (0, 1) and labels (batch,) → log_prob (batch,), z (batch, …).
    ``log_prob`` is `Flow.log_density`, log p(x) − D log L: the nats of an image in one draw.
    """

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor]:
        context, codes = self.flow.context(labels, x.shape[0]), list[Tensor]()

        def transform(y: Tensor) -> tuple[Tensor, Tensor]:
            z, log_det = self.flow.given(context).transform(y)
            codes.append(z)
            return z, log_det

        return self.flow.log_density(x, transform), codes[0]


def export_onnx(
    flow: Flow, path: Path, images: Tensor, stage: Callable[[str], object] = lambda words: None
) -> dict[str, float]:
    """Write the model as ONNX, with any batch size; gives the largest relative errors.

    onnxruntime computes the ``images``, uint8 (batch, C, H, W), all at once and the first alone.
    It has to agree with torch in float64 for each: log p to 1e-5 of itself, and z, as a vector, to
    1e-5 of its length; else ValueError is raised and no file is left. ``stage`` hears what begins.
    """
    stage("turning the model into a graph")
    flow = copy.deepcopy(flow).cpu().float().eval().requires_grad_(False)
    density, x = Density(flow).eval(), flow.dequantize(images.cpu())
    given = (x, torch.arange(len(x)) % flow.classes) if flow.classes else (x,)
    batch = torch.export.Dim("batch")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # names packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own future
        program = torch.onnx.export(
            density,
            given,
            dynamo=True,
            dynamic_shapes=tuple({0: batch} for _ in given),
            input_names=INPUTS[: len(given)],
            output_names=OUTPUTS,
            external_data=False,
            verbose=False,
        )
    assert program is not None  # None is for the exporter of TorchScript
    with whole_file(path) as part:
        program.save(part)
        stage(f"checking with onnxruntime on {len(x)} real images")
        errors = [_errors(part, density, tuple(t[:count] for t in given)) for count in (len(x), 1)]
        worst = dict(zip(OUTPUTS, (max(pair) for pair in zip(*errors, strict=True)), strict=True))
        if not max(worst.values()) <= TOLERANCE:
            found = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
            raise ValueError(f"onnxruntime and torch differ by more than {TOLERANCE}: {found}")
    return worst


def _errors(path: Path, density: Density, given: tuple[Tensor, ...]) -> list[float]:
    """The largest differences between the file and torch in float64, relative to each sample."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    named = {name: tensor.numpy() for name, tensor in zip(INPUTS, given, strict=False)}
    exact = copy.deepcopy(density).double()(given[0].double(), *given[1:])
    pairs = zip(session.run(list(OUTPUTS), named), exact, strict=True)
    rows = [(torch.from_numpy(a).view(len(b), -1), b.reshape(len(b), -1)) for a, b in pairs]
    return [float(((a - b).norm(dim=1) / b.norm(dim=1)).max()) for a, b in rows]

"""What is computed about a model: numbers and tensors, nothing is drawn here."""

from mintnet.analysis.explain import Explainer
from mintnet.analysis.interpolation import ANGLES, codes_between, interpolate
from mintnet.analysis.layers import LayerRow, class_names, facts, layer_rows, residual_check
from mintnet.analysis.overview import Headline, Overview, overview
from mintnet.analysis.reconstruction import (
    ErrorCurve,
    Reconstruction,
    Verification,
    error_curve,
    pixel_error,
    reconstruct,
    verify,
)
from mintnet.analysis.round_trip import RoundTrip, round_trip
from mintnet.analysis.tuning import Trial, tune_step

__all__ = [
    "ANGLES",
    "ErrorCurve",
    "Explainer",
    "Headline",
    "LayerRow",
    "Overview",
    "Reconstruction",
    "RoundTrip",
    "Trial",
    "Verification",
    "class_names",
    "codes_between",
    "error_curve",
    "facts",
    "interpolate",
    "layer_rows",
    "overview",
    "pixel_error",
    "reconstruct",
    "residual_check",
    "round_trip",
    "tune_step",
    "verify",
]

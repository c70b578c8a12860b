"""What is computed about a model: numbers and tensors, nothing is drawn here."""

from mintnet.analysis.explain import Explainer
from mintnet.analysis.interpolation import ANGLES, codes_between, interpolate
from mintnet.analysis.invertibility import ErrorCurve, Verification, error_curve, verify
from mintnet.analysis.layers import LayerRow, layer_rows, residual_check, solved_layers
from mintnet.analysis.overview import Amounts, Overview, overview
from mintnet.analysis.reconstruction import Reconstruction, pixel_error, reconstruct
from mintnet.analysis.round_trip import RoundTrip, round_trip
from mintnet.analysis.summary import Headline, class_names, facts
from mintnet.analysis.tuning import Trial, tune_step

__all__ = [
    "ANGLES",
    "Amounts",
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
    "solved_layers",
    "tune_step",
    "verify",
]

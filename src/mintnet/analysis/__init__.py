"""What is computed about a model: numbers and tensors, nothing is drawn here."""

from mintnet.analysis.explain import Explainer
from mintnet.analysis.interpolation import codes_between, interpolate
from mintnet.analysis.layers import facts, layer_rows, residual_check
from mintnet.analysis.overview import Headline, Overview, overview
from mintnet.analysis.reconstruction import error_curve, reconstruct, round_trip, tune_step, verify

__all__ = ["Explainer", "Headline", "Overview", "codes_between", "error_curve", "facts"]
__all__ += ["interpolate", "layer_rows", "overview", "reconstruct", "residual_check", "round_trip"]
__all__ += ["tune_step", "verify"]

"""Solvers for triangular systems: each returns a `Solution` that says how good it is."""

from mintnet.solvers.auto import Auto
from mintnet.solvers.base import REMEDY, Evaluate, Solver, StructureError, System
from mintnet.solvers.bisection import Bisection
from mintnet.solvers.fixed_point import FixedPoint, ResidualIteration
from mintnet.solvers.solution import InversionError, Solution, Status, relative_residual
from mintnet.solvers.verified import REALS, TOLERANCES, verified
from mintnet.solvers.wavefront import Wavefront

__all__ = ["Auto", "Bisection", "FixedPoint", "ResidualIteration", "Solver", "System", "Wavefront"]
__all__ += ["REMEDY", "Evaluate", "InversionError", "Solution", "Status", "StructureError"]
__all__ += ["REALS", "TOLERANCES", "relative_residual", "verified"]

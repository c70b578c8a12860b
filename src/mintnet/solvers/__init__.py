"""Solvers for triangular systems: each returns a `Solution` that says how good it is."""

from mintnet.solvers.auto import Auto as Auto
from mintnet.solvers.base import REMEDY as REMEDY
from mintnet.solvers.base import Evaluate as Evaluate
from mintnet.solvers.base import Solver as Solver
from mintnet.solvers.base import StructureError as StructureError
from mintnet.solvers.base import System as System
from mintnet.solvers.bisection import Bisection as Bisection
from mintnet.solvers.fixed_point import FixedPoint as FixedPoint
from mintnet.solvers.fixed_point import ResidualIteration as ResidualIteration
from mintnet.solvers.solution import InversionError as InversionError
from mintnet.solvers.solution import Solution as Solution
from mintnet.solvers.solution import Status as Status
from mintnet.solvers.solution import relative_residual as relative_residual
from mintnet.solvers.verified import REALS as REALS
from mintnet.solvers.verified import TOLERANCES as TOLERANCES
from mintnet.solvers.verified import verified as verified
from mintnet.solvers.wavefront import Wavefront as Wavefront

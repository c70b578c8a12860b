"""The cases of `inverse` on a GPU, captured and not, with shipped models among the layers."""

from __future__ import annotations

import torch

from .inverse import draw, run

__all__ = ["draw", "missing", "run"]


def missing() -> str | None:
    """Why it cannot run here."""
    return None if torch.cuda.is_available() else "this campaign needs a GPU; torch finds none here"

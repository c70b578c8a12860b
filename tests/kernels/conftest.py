"""Kernels run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU if there is one, else the CPU with Triton's interpreter."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        return torch.device("cuda")
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def with_recent_numpy(tensor, scope):  # type: ignore[no-untyped-def]
        patch(tensor, scope)
        # int() of an array with one entry, as the interpreter has it, is an error since NumPy 2.4
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_recent_numpy)
    return torch.device("cpu")

"""What the interpreter does not check: that the kernels compile for a GPU, and fit on its chip.

Triton compiles for a GPU where there is none. Each launch of a layer's two passes is caught and
compiled instead; nothing is run. As a program: python tests/kernels/test_kernels_compile.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

SHARED = 227 * 1024  # bytes that a program may have on an H200
LAYERS = [
    # channels, filters, height and width, precision: those of MNIST, and the widest
    (1, 45, 28, "bfloat16"),
    (4, 11, 14, "bfloat16"),
    (1, 64, 28, "bfloat16"),
    (4, 16, 14, "bfloat16"),
    (1, 100, 4, "bfloat16"),
    (1, 45, 28, "float32"),
    (4, 11, 14, "float32"),
]

WALKS = [(1, 45, 28), (4, 11, 14), (16, 2, 7), (3, 85, 32), (12, 21, 16), (48, 5, 8)]


@pytest.mark.slow
def test_every_kernel_compiles_and_fits() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    names = {name for name, *_ in lines}
    assert names >= {f"{name}_kernel" for name in ("first", "second", "inner", "outer", "weight")}
    assert {"collect_kernel", "walk_kernel"} <= names
    for name, shared, _, *layer in lines:
        assert int(shared) <= SHARED, (name, layer)


def compile_all() -> None:
    """A line for each kernel and layer: its name, bytes of shared memory, and warps."""
    import torch
    from kernel_layers import everything, layer_of
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compile_kernel
    from triton.runtime.jit import JITFunction

    from mintnet import MintLayer
    from mintnet.calculus.expression import trace
    from mintnet.kernels import mint
    from mintnet.kernels.chip import chip_layer
    from mintnet.kernels.wavefront import wavefront_kernel
    from mintnet.solvers.fused import groups_of, mint_weights

    types = {
        torch.float32: "*fp32",
        torch.bfloat16: "*bf16",
        torch.int32: "*i32",
        torch.int64: "*i64",
    }
    mint.ALIGNMENT["cpu"] = 64
    layer: tuple[Any, ...] = ()

    def caught(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False))
        constants = {name: value for name, value in options.items() if name in self.arg_names}
        signature = {
            name: "constexpr"
            if name in constants
            else (types[given[name].dtype] if isinstance(given[name], torch.Tensor) else "i32")
            for name in self.arg_names
        }
        aligned = {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(self.arg_names)
            if signature[name].startswith("*")
        }
        source = ASTSource(self, signature, constexprs=constants, attrs=aligned)
        settings = {name: value for name, value in options.items() if name.startswith("num_")}
        kernel = compile_kernel(source, target=GPUTarget("cuda", 90, 32), options=settings)
        print(self.__name__, kernel.metadata.shared, kernel.metadata.num_warps, *layer)

    JITFunction.run = caught
    for layer in LAYERS:
        channels, filters, side, precision = layer
        part = layer_of(channels, filters, side, side, False, 3)
        x = torch.randn(2, channels, side, side)
        everything(chip_layer, part, x, getattr(torch, precision), compile=False)
    for layer in WALKS:
        channels, filters, side = layer
        mint_layer = MintLayer(channels, filters, (side, side))
        weights = mint_weights(
            mint_layer.system(), trace(mint_layer.function), mint_layer.event_shape
        )
        groups = groups_of((channels, side, side), 1, False, torch.device("cpu"))
        assert weights is not None
        wavefront_kernel(weights, groups, torch.randn(2, channels, side, side), torch.ones(2))


if __name__ == "__main__":
    compile_all()

"""Compiles products for an H200, on any machine, and prints the shared memory of each as JSON.

Input, JSON: a list of [tile's fields, variant, precision]. It is a script since Triton's interpreter, chosen
for a whole process, cannot compile.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from recguide.models.kernels.multiply import RANK_STEP, SEEN, Tile, pieces_of, stages_of
from recguide.models.kernels.product import product

SIZES = {"bf16": 2, "fp16": 2, "fp32": 4}
FLAGS = ("GATED", "DUAL", "EXTRA", "BESIDE")


def shared(tile: Tile, variant: dict[str, bool], precision: str) -> int:
    flags = dict.fromkeys(FLAGS, False) | variant
    blocks, size = 1 + flags["GATED"], SIZES[precision]
    stages = stages_of(tile, blocks, size)
    constants: dict[str, Any] = {
        **flags,
        "BO": tile.outputs,
        "TOK": tile.tokens,
        "BK": tile.depth,
        "LOW_SPLIT": 4,
        "RANKS": RANK_STEP,
        "STAGES": stages,
        "SEEN": SEEN,
        "AHEAD": tile.ahead * tile.depth,
        "PIECES": pieces_of(tile.outputs, tile.ahead * tile.depth),
        "SECOND_STAGES": max(1, stages - 1),
        "PDL": True,
    }
    matrix = f"tensordesc<{precision}[{tile.outputs},{tile.depth}]>"
    outer = f"tensordesc<{precision}[{tile.outputs},{RANK_STEP}]>"
    arguments = {
        "x": f"tensordesc<{precision}[{tile.tokens},{tile.depth}]>",
        "matrix": matrix,
        "second": matrix if flags["DUAL"] or flags["BESIDE"] else None,
        "weights": f"*{precision}" if tile.ahead else None,
        "second_weights": f"*{precision}" if tile.ahead and (flags["DUAL"] or flags["BESIDE"]) else None,
        "low": "*fp32" if flags["EXTRA"] or flags["BESIDE"] else None,
        "outer": outer if flags["EXTRA"] else None,
        "on": "*u8" if flags["EXTRA"] or flags["DUAL"] else None,
        "y": "*fp32" if flags["BESIDE"] or tile.split > 1 else f"*{precision}",
        **dict.fromkeys(("tokens", "OUT", "K", "R", "splits"), "i32"),
    }
    constants |= {name: None for name, kind in arguments.items() if kind is None}
    signature = {name: arguments.get(name) or "constexpr" for name in product.arg_names}
    source = ASTSource(fn=product, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": tile.warps})
    return made.metadata.shared


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    json.dump([shared(Tile(*tile), variant, precision) for tile, variant, precision in asked], sys.stdout)

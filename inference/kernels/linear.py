"""x @ weight.T in float32, where a row's result does not depend on how many rows come with it.

A plain product does not promise that: MKL takes other code, with another order of summation, for 1, 2-3 and 4 or more rows, and
splits rows over threads so that 5 to 7 and 9 to 11 differ once more. oneDNN with weights packed for several rows sums in one order
for any number of rows from 2 on, and is faster besides. What this machine's library really does is tried at start; where packed
weights do not hold, every product is made of tiles of `TILE_ROWS` rows, which is slower, and said once.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable

import torch
from torch.nn import functional

TILE_ROWS = 16
_PACK_ROWS = 8
_TRIED_ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 61, 128)

_KEPT_PRODUCTS = "64"  # numbers of rows, times shapes, whose code oneDNN keeps: at its own 1,024 some hundred MiB more
for _cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):  # read at the first product
    os.environ.setdefault(_cache, _KEPT_PRODUCTS)

logger = logging.getLogger(__name__)


class RowStableLinear:
    """`weight`: [outputs, inputs], float32, CPU. Calls map [rows, inputs] to [rows, outputs]."""

    def __init__(self, weight: torch.Tensor) -> None:
        if weight.dtype != torch.float32 or weight.dim() != 2 or weight.device.type != "cpu":
            raise ValueError("the weight must be a float32 matrix on the CPU")
        self.outputs, self.inputs = weight.shape
        self._multiply = (
            _packed(weight) if _packing_is_stable(self.outputs, self.inputs, torch.get_num_threads()) else _tiled(weight)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 or x.shape[1] != self.inputs or x.dtype != torch.float32:
            raise ValueError(f"expected float32 [rows, {self.inputs}], got {x.dtype} {tuple(x.shape)}")
        return self._multiply(x.contiguous())


def linear_reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same product by the book, in float64."""
    return (x.double() @ weight.double().T).float()


def _packed(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACK_ROWS)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:  # a single row would take the matrix-vector code
            return multiply(x.expand(2, -1).contiguous())[:1]
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        return product

    return multiply


def _tiled(weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def multiply(x: torch.Tensor) -> torch.Tensor:
        rows = x.shape[0]
        padded = functional.pad(x, (0, 0, 0, -rows % TILE_ROWS))
        return torch.cat([functional.linear(tile, weight) for tile in torch.split(padded, TILE_ROWS)])[:rows]

    return multiply


@functools.cache
def _packing_is_stable(outputs: int, inputs: int, threads: int) -> bool:
    """Tries it on random numbers, once for each shape and number of threads."""
    generator = torch.Generator().manual_seed(outputs * 31 + inputs)
    x = torch.randn(max(_TRIED_ROWS), inputs, generator=generator)
    try:
        multiply = _packed(torch.randn(outputs, inputs, generator=generator))
        everything = multiply(x)
        stable = all(torch.equal(multiply(x[-rows:]), everything[-rows:]) for rows in _TRIED_ROWS)
        reason = "its rows depend on how many there are"
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        stable, reason = False, str(error).splitlines()[0]
    if not stable:
        logger.warning("%d x %d products run in tiles of %d rows: packed weights: %s", outputs, inputs, TILE_ROWS, reason)
    return stable

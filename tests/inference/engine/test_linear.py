"""A row of a product does not depend on the rows beside it."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
import torch

from inference.kernels import linear
from inference.kernels.linear import RowStableLinear, linear_reference

SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536), (290, 64), (128, 64), (64, 128), (1, 3)]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_alone_and_among_any_others(shape: tuple[int, int], threads: int) -> None:
    torch.set_num_threads(threads)
    product, x = RowStableLinear(numbers(*shape)), numbers(200, shape[1])
    everything = product(x)
    for rows in (*range(1, 34), 44, 45, 64, 100, 199):
        assert torch.equal(product(x[:rows]), everything[:rows]), rows
        assert torch.equal(product(x[-rows:]), everything[-rows:]), rows


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_right(shape: tuple[int, int]) -> None:
    x, weight = numbers(37, shape[1]), numbers(*shape)
    torch.testing.assert_close(RowStableLinear(weight)(x), linear_reference(x, weight), rtol=1e-4, atol=1e-4)


def test_a_nan_stays_in_its_row() -> None:
    product, x = RowStableLinear(numbers(64, 64)), numbers(8, 64)
    spoilt = x.clone()
    spoilt[3] = float("nan")
    kept = [row for row in range(8) if row != 3]
    assert torch.equal(product(spoilt)[kept], product(x)[kept])


def test_where_packed_weights_do_not_hold_tiles_take_over_and_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(weight: torch.Tensor) -> None:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(linear, "_packed", unavailable)
    linear._packing_is_stable.cache_clear()
    with caplog.at_level(logging.WARNING):
        product, x = RowStableLinear(numbers(96, 64)), numbers(45, 64)
    linear._packing_is_stable.cache_clear()
    assert "no such operator" in caplog.text
    everything = product(x)
    assert all(torch.equal(product(x[:rows]), everything[:rows]) for rows in range(1, 46))
    torch.testing.assert_close(everything, linear_reference(x, numbers(96, 64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x", [numbers(4, 63), numbers(64), numbers(4, 64).double()])
def test_what_does_not_fit_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="expected float32"):
        RowStableLinear(numbers(8, 64))(x)


GROW = """
from pathlib import Path
import torch
from inference.kernels.linear import RowStableLinear

def anonymous_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

torch.set_num_threads(1)
product = RowStableLinear(torch.randn(576, 576))
product(torch.randn(600, 576))
before = anonymous_kib()
for rows in range(2, 600):
    product(torch.randn(rows, 576))
print((anonymous_kib() - before) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_that_meets_many_numbers_of_rows_does_not_grow_with_each() -> None:
    """Unbounded it is 500 MiB here: what oneDNN keeps for 600 numbers of rows."""
    grown = subprocess.run([sys.executable, "-c", GROW], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 300

"""Paged attention against the slow reference, and against itself in other company."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from inference.kernels.paged_attention import Span, paged_attention, paged_attention_reference, plan_attention

BLOCKS = 96
GENERATOR = torch.Generator().manual_seed(3)


def pool(kv_heads: int = 2, dim: int = 16, block_tokens: int = 16) -> torch.Tensor:
    return torch.randn(BLOCKS, 2, kv_heads, block_tokens, dim, generator=torch.Generator().manual_seed(1))


def spans_of(*lengths: tuple[int, int], block_tokens: int = 16) -> list[Span]:
    """(start, count) each; blocks in random order, each used once."""
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(2)).tolist()
    spans, first = [], 0
    for start, count in lengths:
        blocks = [order.pop() for _ in range(-(-(start + count) // block_tokens))]
        spans.append(Span(first, count, start, blocks))
        first += count
    return spans


def queries(spans: list[Span], heads: int = 6, dim: int = 16) -> torch.Tensor:
    rows = sum(span.count for span in spans)
    return torch.randn(rows, heads, dim, generator=torch.Generator().manual_seed(rows))


RAGGED = [(0, 1), (14, 1), (15, 1), (16, 1), (300, 1), (0, 5), (0, 16), (3, 17), (64, 70), (127, 2), (200, 129)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 16), (9, 3, 64), (4, 4, 8), (16, 1, 32)])
def test_ragged_spans_agree_with_the_reference(heads: int, kv_heads: int, dim: int) -> None:
    spans, kv = spans_of(*RAGGED), pool(kv_heads, dim)
    q = queries(spans, heads, dim)
    torch.testing.assert_close(
        paged_attention(q, kv, plan_attention(spans, 16)), paged_attention_reference(q, kv, spans), rtol=1e-4, atol=1e-5
    )


def test_a_span_gives_the_same_bits_alone_and_in_company() -> None:
    spans, kv = spans_of(*RAGGED), pool()
    q = queries(spans)
    together = paged_attention(q, kv, plan_attention(spans, 16))
    for span in spans:
        rows = slice(span.first, span.first + span.count)
        alone = paged_attention(q[rows], kv, plan_attention([dataclasses.replace(span, first=0)], 16))
        assert torch.equal(alone, together[rows]), span


def test_a_row_gives_the_same_bits_however_its_prompt_is_cut() -> None:
    (whole,), kv = spans_of((0, 700)), pool()
    q = queries([whole])
    expected = paged_attention(q, kv, plan_attention([whole], 16))
    for step in (1, 2, 3, 7, 8, 16, 63, 64, 65, 129):
        for start in range(0, 700, step):
            count = min(step, 700 - start)
            part = paged_attention(q[start : start + count], kv, plan_attention([Span(0, count, start, whole.blocks)], 16))
            assert torch.equal(part, expected[start : start + count]), (step, start)


def test_what_lies_in_other_blocks_and_behind_the_end_does_not_matter() -> None:
    spans, kv = spans_of((20, 1), (30, 1), (5, 12)), pool()
    q = queries(spans)
    expected = paged_attention(q, kv, plan_attention(spans, 16))
    spoilt = kv.clone()
    used = [block for span in spans for block in span.blocks]
    spoilt[[block for block in range(BLOCKS) if block not in used]] = float("nan")
    for span in spans:
        spoilt[span.blocks[-1], :, :, span.end % 16 or 16 :] = 1e6
    assert torch.equal(paged_attention(q, spoilt, plan_attention(spans, 16)), expected)


@pytest.mark.parametrize("span", [Span(0, 0, 0, [1]), Span(0, 1, 16, [1]), Span(0, 17, 0, [1])])
def test_spans_without_rows_or_with_too_few_blocks_are_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        plan_attention([span], 16)


def test_shapes_that_do_not_fit_are_refused() -> None:
    spans, kv = spans_of((0, 4)), pool()
    plan = plan_attention(spans, 16)
    for q, pages in ((queries(spans)[:3], kv), (queries(spans, heads=5), kv), (queries(spans, dim=8), kv)):
        with pytest.raises(ValueError, match="fit"):
            paged_attention(q, pages, plan)
    with pytest.raises(ValueError, match="float32"):
        paged_attention(queries(spans).double(), kv, plan)
    with pytest.raises(ValueError, match="lie together"):
        paged_attention(queries(spans), kv.transpose(2, 3).contiguous().transpose(2, 3), plan)

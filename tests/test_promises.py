"""A promise whose test is gone is not kept."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PROMISES = DOCS / "promises.md"
NAMED = sorted({found for page in DOCS.glob("*.md") for found in re.findall(r"`(\S+\.py)::(\w+)`", page.read_text())})


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_promise_has_its_test(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (TESTS / file).read_text(), re.MULTILINE)


def test_every_promise_names_a_test() -> None:
    rows = [line for line in PROMISES.read_text().splitlines() if line.startswith("| ") and "held by" not in line]
    assert [row for row in rows if not re.search(r"`\S+\.py::\w+`", row)] == []
    assert len(rows) > 20

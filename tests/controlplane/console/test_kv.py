"""The KV page: pools, extents, open hand-offs."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from controlplane.console.kv import kv_page
from controlplane.console.requests import public_id
from inference.kvdirectory.models import Extent, HandOff
from inference.requests.models import State
from tests.controlplane.console.rows import LAYOUT, Tenant, request_make
from tests.controlplane.console.test_entry import address


def cells(name: str) -> list[list[str]]:
    return [[cell.text for cell in row] for row in kv_page()[name].rows]


def extent_make(worker: str, tokens: int, **fields: Any) -> None:
    Extent.objects.create(
        digest=secrets.token_bytes(32), worker=worker, worker_epoch=3, encoding="float32", tokens=tokens, block=1, **fields
    )


def test_extents_are_counted_by_worker(kitchen: None) -> None:
    extent_make("prefill-0", 64)
    extent_make("prefill-0", 192, pinned_until=timezone.now() + timedelta(hours=1))
    extent_make("prefill-0", 128, pinned_until=timezone.now() - timedelta(hours=1))
    extent_make("decode-0", 64)
    assert [row[:7] for row in cells("extents")] == [
        ["decode-0", "3", "device", "float32", "1", "64", "0"],
        ["prefill-0", "3", "device", "float32", "3", "192", "1"],
    ]


def test_hand_offs_are_listed_until_they_are_released(staff: Client, acme: Tenant) -> None:
    rows = [request_make(acme, state=State.DECODING) for _ in range(2)]
    for row, released in zip(rows, (None, timezone.now()), strict=True):
        HandOff.objects.create(
            request_id=row.id,
            tenant_id=acme.id,
            epoch=2,
            worker="prefill-0",
            worker_epoch=3,
            layout=LAYOUT.to_json(),
            tokens=100,
            pages=[[1, 1, "x"]] * 7,
            result={},
            published_at=timezone.now() - timedelta(seconds=30),
            released_at=released,
        )
    assert [row[:6] for row in cells("handoffs")] == [[public_id(rows[0].id), "Acme", "prefill-0", "3", "100", "7"]]
    content = staff.get(address("kv")).content.decode()
    assert (public_id(rows[0].id) in content, public_id(rows[1].id) in content) == (True, False)


def test_pools_are_shown_in_blocks_and_memory(kitchen: None) -> None:
    decode = next(row for row in cells("pools") if row[0] == "decode-0")
    assert decode[3:] == ["774", "150", "96", "4", "1,024", f"{1024 * LAYOUT.block_bytes // 2**20:,} MiB"]

"""Pages come over whole, or not at all."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inference.contracts import KVLayout
from inference.kvtransport.arena import Arena, ArenaError
from inference.kvtransport.shm import ShmTransport, TransferFailed, pages_describe, pages_note

LAYOUT = KVLayout(model="tiny", revision="r1", layers=2, kv_heads=1, head_dim=4, block_tokens=16, dtype="float32")


@pytest.fixture
def source(tmp_path: Path) -> Arena:
    arena = Arena.create(tmp_path / "prefill-0-1.kv", LAYOUT, blocks=8, worker_epoch=1)
    arena.pages[:] = np.random.default_rng(0).integers(0, 256, arena.pages.shape, dtype=np.uint8)
    return arena


@pytest.fixture
def own(tmp_path: Path) -> Arena:
    return Arena.create(tmp_path / "decode-0-1.kv", LAYOUT, blocks=8, worker_epoch=1)


def pull(tmp_path: Path, own: Arena, source: Arena, **changes: object) -> int:
    pages = pages_describe(source, pages_note(source, (3, 5)))
    arguments = {"arena": source.path.name, "worker_epoch": 1, "layout": LAYOUT, "pages": pages, "targets": [0, 7], **changes}
    return ShmTransport(tmp_path, own).pull(**arguments)  # type: ignore[arg-type]


def test_pages_arrive_in_their_blocks(tmp_path: Path, own: Arena, source: Arena) -> None:
    assert pull(tmp_path, own, source) == 2 * LAYOUT.block_bytes
    assert (own.pages[0] == source.pages[3]).all()
    assert (own.pages[7] == source.pages[5]).all()
    assert not own.pages[1:7].any()


def test_the_pool_is_the_arena_itself(source: Arena) -> None:
    pool = source.tensor()
    assert pool.shape == (8, 2, 2, 1, 16, 4)
    pool[3].fill_(1.5)
    assert (source.pages[3].view(np.float32) == 1.5).all()


def test_a_block_that_was_overwritten_during_the_copy_is_refused(tmp_path: Path, own: Arena, source: Arena) -> None:
    pages = pages_describe(source, pages_note(source, (3, 5)))
    source.raise_generation(5)
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, pages=pages)
    assert failure.value.code == "generation_passed"


def test_a_block_that_was_given_away_before_it_was_described_is_refused(tmp_path: Path, own: Arena, source: Arena) -> None:
    """Its digest fits what it holds now, which is somebody else's."""
    notes = pages_note(source, (3, 5))
    source.raise_generation(5)
    source.pages[5] = 0
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, pages=pages_describe(source, notes))
    assert failure.value.code == "generation_passed"


def test_a_flipped_bit_is_refused(tmp_path: Path, own: Arena, source: Arena) -> None:
    pages = pages_describe(source, pages_note(source, (3, 5)))
    source.pages[5][10] ^= 1
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, pages=pages)
    assert failure.value.code == "digest_differs"


def test_another_layout_is_refused_before_a_byte_is_copied(tmp_path: Path, own: Arena, source: Arena) -> None:
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, layout=dataclasses.replace(LAYOUT, revision="r2"))
    assert failure.value.code == "layout_differs"
    assert not own.pages.any()


@pytest.mark.parametrize("name", ["", "..", "../secret", "/etc/passwd", "gone.kv"])
def test_a_name_leads_nowhere_but_into_the_folder(tmp_path: Path, own: Arena, source: Arena, name: str) -> None:
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, arena=name)
    assert failure.value.code == "source_gone"


def test_a_link_is_not_followed(tmp_path: Path, own: Arena, source: Arena) -> None:
    (tmp_path / "link.kv").symlink_to(source.path)
    with pytest.raises(TransferFailed):
        pull(tmp_path, own, source, arena="link.kv")


def test_an_arena_of_another_process_epoch_is_refused(tmp_path: Path, own: Arena, source: Arena) -> None:
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, worker_epoch=2)
    assert failure.value.code == "source_gone"


def test_a_page_outside_the_arena_is_refused(tmp_path: Path, own: Arena, source: Arena) -> None:
    page = dataclasses.replace(pages_describe(source, pages_note(source, (3,)))[0], index=8)
    with pytest.raises(TransferFailed) as failure:
        pull(tmp_path, own, source, pages=[page], targets=[0])
    assert failure.value.code == "page_unknown"


def test_a_truncated_file_is_no_arena(tmp_path: Path, source: Arena) -> None:
    (tmp_path / "short.kv").write_bytes(source.path.read_bytes()[:5000])
    with pytest.raises(ArenaError):
        Arena.open(tmp_path, "short.kv", LAYOUT, 1)


def test_the_file_is_for_its_owner_alone(source: Arena) -> None:
    assert source.path.stat().st_mode & 0o777 == 0o600


def test_a_reader_that_maps_an_arena_lives_on_after_the_owner_removed_it(tmp_path: Path, source: Arena) -> None:
    reader = Arena.open(tmp_path, source.path.name, LAYOUT, 1)
    source.remove()
    assert (reader.pages[3] == source.pages[3]).all()


READ_PAGE_3 = """
import json, sys
from pathlib import Path
from inference.contracts import KVLayout
from inference.kvtransport.arena import Arena
folder, name, layout = sys.argv[1:]
print(int(Arena.open(Path(folder), name, KVLayout.from_json(json.loads(layout)), 1).pages[3].sum()))
"""


def test_a_reader_process_that_exits_takes_nothing_of_the_owner_with_it(tmp_path: Path, source: Arena) -> None:
    """Some libraries unlink shared memory when any process that attached to it ends."""
    arguments = [sys.executable, "-c", READ_PAGE_3, str(tmp_path), source.path.name, json.dumps(LAYOUT.to_json())]
    reader = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert int(reader.stdout) == int(source.pages[3].sum()) > 0
    again = Arena.open(tmp_path, source.path.name, LAYOUT, 1)
    assert (again.pages[3] == source.pages[3]).all()

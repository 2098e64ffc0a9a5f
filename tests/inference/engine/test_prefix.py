"""Identity of KV."""

import subprocess
import sys

import pytest

from inference.engine.prefix import chain_hash, chain_hashes, chain_root

ROOT = chain_root(scope_salt=b"s" * 32, model="m", revision="r")


def test_every_field_of_the_root_counts_and_borders_between_fields_too() -> None:
    roots = {
        ROOT,
        chain_root(scope_salt=b"t" * 32, model="m", revision="r"),
        chain_root(scope_salt=b"s" * 32, model="mr", revision=""),
        chain_root(scope_salt=b"s" * 32, model="", revision="mr"),
        chain_root(scope_salt=b"s" * 31, model="sm", revision="r"),
    }
    assert len(roots) == 5


def test_a_digest_depends_on_everything_before_it() -> None:
    first = chain_hashes(ROOT, list(range(48)), 16)
    second = chain_hashes(ROOT, [99, *range(1, 48)], 16)
    assert len(first) == 3
    assert not set(first) & set(second)


def test_only_full_blocks_have_a_digest() -> None:
    assert [len(chain_hashes(ROOT, [7] * length, 16)) for length in (0, 15, 16, 17, 31, 32)] == [0, 0, 1, 1, 1, 2]


def test_another_process_with_another_hash_seed_finds_the_same_digest() -> None:
    code = f"from inference.engine.prefix import *; print(chain_hash({ROOT!r}, [1]).hex())"
    outputs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    }
    assert outputs == {chain_hash(ROOT, [1]).hex().encode() + b"\n"}


def test_the_encoding_never_changes_unnoticed() -> None:
    assert chain_hash(ROOT, [1, 2, 49151]).hex() == PINNED


def test_hashing_loads_no_torch() -> None:
    code = "import inference.engine.prefix, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_parent_that_is_no_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        chain_hash(b"short", [1])


PINNED = "37dd0606c45e78923fa7facd072ec1ddde66a7d6283ceeba5bd65449cae89c9e"

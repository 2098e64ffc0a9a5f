"""Values that cross a process survive the way."""

from inference.contracts import FinishEntry, KVLayout, SamplingParams, TokenEntry, stream_entry_from_json


def test_sampling_params_come_back_equal() -> None:
    params = SamplingParams(max_tokens=3, stop=("a", "b"), seed=2**64 - 1)
    assert SamplingParams.from_json(params.to_json()) == params


def test_unknown_keys_of_a_newer_version_are_ignored() -> None:
    assert SamplingParams.from_json({"max_tokens": 3, "invented_later": 1}) == SamplingParams(max_tokens=3)


def test_stream_entries_come_back_as_their_own_kind() -> None:
    for entry in (TokenEntry(2, 0, 5, (7, 8), "ab"), FinishEntry(2, ("stop",), 10, 4, 3)):
        assert stream_entry_from_json(entry.to_json()) == entry


def test_block_bytes_follow_the_layout() -> None:
    layout = KVLayout(model="m", revision="r", layers=30, kv_heads=3, head_dim=64, block_tokens=16, dtype="float32")
    assert layout.block_bytes == 30 * 2 * 3 * 16 * 64 * 4

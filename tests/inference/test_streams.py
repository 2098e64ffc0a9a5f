"""Whatever is written, readers see positions 1..n once, and nothing of a zombie behind a take-over."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest

from inference.contracts import ErrorEntry, FinishEntry, TakeoverEntry, TokenEntry
from inference.streams import STREAM_LOST, EntryFilter, Signals, StreamReader, StreamWriter


def token(position: int, epoch: int = 1) -> TokenEntry:
    return TokenEntry(epoch, 0, position, (100 + position,), chr(96 + position))


FINISH = FinishEntry(1, ("stop",), 5, 0, 2)


def cleaned(*entries: TokenEntry | TakeoverEntry | FinishEntry | ErrorEntry) -> list[object]:
    sieve = EntryFilter()
    return [clean for entry in entries if (clean := sieve.clean(entry)) is not None]


def test_repeats_are_dropped() -> None:
    assert cleaned(token(1), token(1), token(2), token(1), token(2)) == [token(1), token(2)]


def test_a_zombie_is_not_heard_behind_a_take_over() -> None:
    assert cleaned(token(1), TakeoverEntry(2), token(2), token(2, epoch=2)) == [token(1), token(2, epoch=2)]


def test_a_normal_hand_over_needs_no_take_over() -> None:
    assert cleaned(token(1), token(2, epoch=2)) == [token(1), token(2, epoch=2)]


def test_a_gap_becomes_an_error_and_never_text_with_a_hole() -> None:
    lost = cleaned(token(1), token(3))[-1]
    assert isinstance(lost, ErrorEntry)
    assert lost.code == STREAM_LOST


def test_choices_count_for_themselves() -> None:
    other = TokenEntry(1, 1, 1, (5,), "x")
    assert cleaned(token(1), other, token(2)) == [token(1), other, token(2)]


async def read(reader: StreamReader, request_id: str, count: int) -> list[object]:
    subscription = reader.subscribe(request_id)
    try:
        return [await subscription.next(5.0) for _ in range(count)]
    finally:
        subscription.close()


async def test_a_reader_hears_what_was_written_before_and_after_it_subscribed(redis_url: str) -> None:
    reader, writer, request_id = StreamReader(redis_url), StreamWriter(redis_url), str(uuid.uuid4())
    await reader.start()
    try:
        await asyncio.to_thread(writer.write, [(request_id, token(1))])
        reading = asyncio.create_task(read(reader, request_id, 3))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(writer.write, [(request_id, token(2)), (request_id, FINISH)])
        assert await reading == [token(1), token(2), FINISH]
    finally:
        await reader.close()


async def test_many_streams_share_one_reader(redis_url: str) -> None:
    reader, writer = StreamReader(redis_url), StreamWriter(redis_url)
    await reader.start()
    ids = [str(uuid.uuid4()) for _ in range(50)]
    try:
        readings = [asyncio.create_task(read(reader, request_id, 2)) for request_id in ids]
        await asyncio.sleep(0)
        await asyncio.to_thread(writer.write, [(request_id, token(position)) for position in (1, 2) for request_id in ids])
        assert await asyncio.gather(*readings) == [[token(1), token(2)]] * 50
    finally:
        await reader.close()


async def test_silence_is_a_timeout(redis_url: str) -> None:
    reader = StreamReader(redis_url)
    await reader.start()
    try:
        subscription = reader.subscribe(str(uuid.uuid4()))
        with pytest.raises(TimeoutError):
            await subscription.next(0.05)
    finally:
        await reader.close()


async def test_a_reader_ends_although_a_cancel_is_lost(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = StreamReader(redis_url)
    read_once = reader._read_once

    async def deaf() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await read_once()

    monkeypatch.setattr(reader, "_read_once", deaf)
    await reader.start()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await reader.close()


async def test_a_cancel_that_comes_with_an_entry_is_not_swallowed(redis_url: str) -> None:
    reader = StreamReader(redis_url)
    subscription = reader.subscribe(str(uuid.uuid4()))
    waiting = asyncio.create_task(subscription.next(5))
    await asyncio.sleep(0)
    subscription.feed("1-0", token(1))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await reader.close()


def test_a_take_over_answers_the_tokens_so_far_and_voids_the_former_owner(redis_url: str) -> None:
    writer, request_id = StreamWriter(redis_url), str(uuid.uuid4())
    writer.write([(request_id, token(1)), (request_id, token(2)), (request_id, token(2))])
    assert writer.take_over(request_id, 2) == ((101, 102),)
    writer.write([(request_id, token(3))])  # a zombie
    assert writer.take_over(request_id, 3) == ((101, 102),)


def test_a_take_over_of_an_empty_stream_starts_from_nothing(redis_url: str) -> None:
    assert StreamWriter(redis_url).take_over(str(uuid.uuid4()), 2) == ((),)


def test_signals_come_in_order_and_once(redis_url: str) -> None:
    signals, slot = Signals(redis_url), f"slot-{uuid.uuid4()}"
    signals.send(slot, "cancel", "a")
    signals.send(slot, "release", "b")
    assert list(signals.receive(slot)) == [("cancel", "a"), ("release", "b")]
    assert list(signals.receive(slot, timeout_s=0.05)) == []

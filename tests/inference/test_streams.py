"""The token channel over a real server: readers, take-overs, signals."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

import pytest
import redis

from inference.contracts import FinishEntry, StreamEntry, TokenEntry
from inference.streams import LIVE_AGAIN, Signals, StreamReader, StreamWriter, stream_key
from inference.transcript import Gap, Transcript


def token(position: int, epoch: int = 1) -> TokenEntry:
    return TokenEntry(epoch, 0, position, (100 + position,), chr(96 + position))


FINISH = FinishEntry(1, ("stop",), 5, 0, 2)


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


def logged(*ids: int) -> Transcript:
    transcript = Transcript()
    transcript.append(0, ids)
    return transcript


def test_a_take_over_answers_the_tokens_so_far_and_voids_the_former_owner(redis_url: str) -> None:
    writer, request_id = StreamWriter(redis_url), str(uuid.uuid4())
    writer.write([(request_id, token(1)), (request_id, token(2)), (request_id, token(2))])
    assert writer.take_over(request_id, 2).ids == ((101, 102),)
    writer.write([(request_id, token(3))])  # a zombie
    assert writer.take_over(request_id, 3).ids == ((101, 102),)


def test_a_take_over_of_an_empty_stream_starts_from_nothing(redis_url: str) -> None:
    assert StreamWriter(redis_url).take_over(str(uuid.uuid4()), 2).ids == ()


def test_a_take_over_goes_on_from_the_token_log_where_the_stream_lost_its_beginning(redis_url: str) -> None:
    writer, request_id = StreamWriter(redis_url), str(uuid.uuid4())
    writer.write([(request_id, token(position)) for position in (2, 3, 4, 5)])
    assert writer.take_over(request_id, 2, logged(101, 102, 103)).ids == ((101, 102, 103, 104, 105),)


def test_a_take_over_never_joins_what_does_not_follow(redis_url: str) -> None:
    writer, request_id = StreamWriter(redis_url), str(uuid.uuid4())
    writer.write([(request_id, token(position)) for position in (5, 6)])
    assert writer.take_over(request_id, 2, logged(101, 102, 103)).ids == ((101, 102, 103),)


async def test_a_gap_is_answered_until_it_is_filled_and_then_the_stream_goes_on(redis_url: str) -> None:
    subscription = StreamReader(redis_url).subscribe(str(uuid.uuid4()))
    entries: list[StreamEntry] = [token(1), token(4), token(5), FinishEntry(1, ("stop",), 5, 0, 5)]
    for number, entry in enumerate(entries):
        subscription.feed(f"{number}-0", entry)
    assert await subscription.next(1) == token(1)
    for _ in range(3):
        assert isinstance(await subscription.next(1), Gap)
        assert subscription.transcript.ids == ((101,),)
    subscription.transcript.append(0, (102, 103, 104))
    assert [await subscription.next(1) for _ in range(2)] == [token(5), FinishEntry(1, ("stop",), 5, 0, 5)]


def test_a_stream_that_valkey_forgot_does_not_live_for_ever(redis_url: str) -> None:
    writer, request_id = StreamWriter(redis_url), str(uuid.uuid4())
    writer.write([(request_id, token(position)) for position in range(40, 40 + LIVE_AGAIN)])
    writer.take_over(other := str(uuid.uuid4()), 2)
    with redis.Redis.from_url(redis_url) as client:
        assert client.ttl(stream_key(request_id)) > 0
        assert client.ttl(stream_key(other)) > 0


def test_signals_come_in_order_and_once(redis_url: str) -> None:
    signals, slot = Signals(redis_url), f"slot-{uuid.uuid4()}"
    signals.send(slot, "cancel", "a")
    signals.send(slot, "release", "b")
    assert list(signals.receive(slot)) == [("cancel", "a"), ("release", "b")]
    assert list(signals.receive(slot, timeout_s=0.05)) == []


async def test_a_wake_that_comes_while_another_ends_is_not_lost(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.streams.READER_BLOCK_MS", 9_000)
    request_id, reader = str(uuid.uuid4()), StreamReader(redis_url)
    expire, ending = reader._redis.expire, asyncio.Event()

    async def slow(*arguments: Any) -> None:
        await expire(*arguments)
        ending.set()
        await asyncio.sleep(0.2)

    monkeypatch.setattr(reader._redis, "expire", slow)
    await reader.start()
    try:
        await ending.wait()
        StreamWriter(redis_url).write([(request_id, token(1))])
        async with asyncio.timeout(8):
            assert await reader.subscribe(request_id).next(30) == token(1)
    finally:
        await reader.close()


async def test_a_slow_reader_of_much_never_waits_for_the_reads_time_to_be_over(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole backlog that comes to a waiting consumer must wake the reader as soon as there is room again."""
    monkeypatch.setattr("inference.streams.READER_BLOCK_MS", 9_000)
    request_id, reader = str(uuid.uuid4()), StreamReader(redis_url)
    await reader.start()
    try:
        subscription = reader.subscribe(request_id)
        waiting = asyncio.create_task(subscription.next(30))
        await asyncio.sleep(0.05)
        StreamWriter(redis_url).write([(request_id, TokenEntry(1, 0, position, (7,), "x")) for position in range(1, 1_501)])
        async with asyncio.timeout(8):
            heard = [await waiting, *[await subscription.next(30) for _ in range(1_499)]]
        assert [entry.position for entry in heard if isinstance(entry, TokenEntry)] == list(range(1, 1_501))
    finally:
        await reader.close()

"""Several sequences as one, each in its own order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

AHEAD = 64  # entries that wait here for a slow client


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None = None


async def merged(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """(number of the source, its entry). The first source that fails ends all. Closes the sources."""
    if len(sources) == 1:
        async with aclosing(sources[0]) as alone:
            async for entry in alone:
                yield 0, entry
        return
    queue: asyncio.Queue[tuple[int, T | _End]] = asyncio.Queue(AHEAD)
    pumps = [asyncio.create_task(_pump(number, source, queue)) for number, source in enumerate(sources)]
    try:
        running = len(pumps)
        while running:
            number, found = await queue.get()
            if not isinstance(found, _End):
                yield number, found
            elif found.error is not None:
                raise found.error
            else:
                running -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(number: int, source: AsyncGenerator[T, None], queue: asyncio.Queue[tuple[int, T | _End]]) -> None:
    end = _End()
    try:
        async with aclosing(source) as entries:
            async for entry in entries:
                await queue.put((number, entry))
    except Exception as error:
        end = _End(error)
    await queue.put((number, end))

"""Where blocking work runs: a few threads for the database, a few for tokenising. What waits is counted and bounded."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

from controlplane.errors import Overloaded
from controlplane.gateway import limits

P = ParamSpec("P")
R = TypeVar("R")


class Pool:
    """Threads that accept work until too much of it waits."""

    def __init__(self, name: str, threads: int, waiting: int) -> None:
        self.name = name
        self.most = threads + waiting
        self.pending = 0
        self._lock = threading.Lock()
        self.executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """A cancelled caller does not wait, but the work that has begun ends, and counts until then."""
        if self.pending >= self.most:
            raise Overloaded("The server is busy. Try again in a moment.", detail=f"{self.name}: {self.pending} calls wait")
        self._count(1)
        work = self.executor.submit(contextvars.copy_context().run, partial(function, *args, **kwargs))
        work.add_done_callback(lambda _: self._count(-1))
        return await asyncio.wrap_future(work)

    def _count(self, change: int) -> None:
        with self._lock:
            self.pending += change


database = Pool("database", limits.DATABASE_THREADS, limits.DATABASE_WAITING)
lease = Pool("database-lease", 1, 2)  # its own: a rush on the database must not cost this process its lease
text = Pool("text", limits.TEXT_THREADS, limits.TEXT_WAITING)
bodies = Pool("bodies", 1, limits.BODIES_WAITING)  # one: each takes a good part of a processor while it lasts
answers = Pool("answers", 1, limits.OPEN_REQUESTS)


async def in_database(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a service or selector in a thread, over the connection that this thread keeps."""
    return await database.run(with_connection(function), *args, **kwargs)


def with_connection(function: Callable[P, R]) -> Callable[P, R]:
    """A connection that broke is closed first, so that the call makes a new one."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        close_old_connections()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()  # one that broke, or that may not grow old, goes at once

    return call

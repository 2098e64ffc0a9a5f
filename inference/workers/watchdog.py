"""Notices a process that is connected to the broker and receives nothing: its queue was deleted, or its consumer was lost.

Each second it sends a message to the process's own queue, over a connection of its own. Whatever the process receives shows that it
hears. Where the broker took several messages in a row and nothing came, it is deaf, and only a new consumer helps. A broker that is
away is no deafness: then nothing is taken.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from celery import current_app, shared_task
from celery.signals import task_received

log = logging.getLogger(__name__)

PROBE_S = 1.0
EXPIRES_S = 10


@shared_task(name="inference.hear", ignore_result=True)  # type: ignore[untyped-decorator] # Celery's
def hear() -> None:
    """That it was received is all."""


class Watchdog:
    def __init__(self, queue: str, *, patience: int, on_deaf: Callable[[], None]) -> None:
        """`patience`: so many messages in a row may stay out."""
        self._queue = queue
        self._patience = patience
        self._on_deaf = on_deaf
        self._heard = threading.Event()
        self._connection: Any = None

    def start(self) -> None:
        task_received.connect(lambda **_: self._heard.set(), weak=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        pause = threading.Event()
        unheard = 0
        while unheard <= self._patience:
            self._heard.clear()  # before the sending: what is sent may be received before the broker's answer is
            sent = self._sent()
            pause.wait(PROBE_S)
            unheard = 0 if self._heard.is_set() else unheard + sent
        log.critical("nothing is received from queue %s, though the broker takes messages for it", self._queue)
        self._on_deaf()

    def _sent(self) -> bool:
        try:
            self._send()
        except Exception as error:  # whatever a broker's client raises: it is away, or it refuses
            log.warning("the broker takes no message for queue %s: %s: %s", self._queue, type(error).__name__, error)
            self._disconnect()
            return False
        return True

    def _send(self) -> None:
        if self._connection is None:
            self._connection = current_app.connection_for_write()
        channel = self._connection.default_channel
        current_app.amqp.queues[self._queue].bind(channel).declare()  # where it was deleted, it is there again
        with current_app.amqp.Producer(channel, auto_declare=False) as producer:
            hear.apply_async(queue=self._queue, producer=producer, expires=EXPIRES_S, retry=False)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is broken: however it ends, the watch goes on
                connection.release()

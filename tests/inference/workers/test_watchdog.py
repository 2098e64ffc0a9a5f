"""A process that receives nothing is found out, also after its broker was away."""

from __future__ import annotations

import threading

import pytest
from celery import current_app

from inference.workers.watchdog import Watchdog


class Broker:
    """Takes every message and brings none; breaks at the numbers of `breaks`."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = breaks
        self.taken = 0
        self.broken = 0

    def send(self, watchdog: Watchdog) -> None:
        watchdog._connection = watchdog._connection or current_app.connection_for_write()
        if self.taken + self.broken in self.breaks:
            self.broken += 1
            raise ConnectionResetError
        self.taken += 1


@pytest.mark.parametrize("breaks", [(), (0,), (0, 1, 2), (1, 3)])
def test_a_broker_that_breaks_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch, breaks: tuple[int, ...]) -> None:
    broker, deaf = Broker(*breaks), threading.Event()
    monkeypatch.setattr("inference.workers.watchdog.PROBE_S", 0.01)
    monkeypatch.setattr(Watchdog, "_send", lambda self: broker.send(self))
    Watchdog("nobody-0", patience=3, on_deaf=deaf.set).start()
    assert deaf.wait(10)
    assert broker.broken == len(breaks)
    assert broker.taken == 4

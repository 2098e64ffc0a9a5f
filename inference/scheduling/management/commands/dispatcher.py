"""Runs a dispatcher: leader or hot standby."""

from __future__ import annotations

import logging
import signal
import time
from types import FrameType
from typing import Any

import psycopg
from django.core.management.base import BaseCommand
from django.db import Error, connections
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from inference.scheduling.dispatcher import Dispatcher
from inference.telemetry.process import telemetry_start

log = logging.getLogger(__name__)

AWAY = (Error, psycopg.Error, KombuError, RedisError, OSError)  # the database or the broker: the queue is safe where it is


class Command(BaseCommand):
    help = "Offers queued requests to workers. Start any number; one leads by a lease."

    def handle(self, *args: Any, **options: Any) -> None:
        telemetry_start("dispatcher")
        dispatcher = Dispatcher()
        stopping = False

        def stop(_signal: int, _frame: FrameType | None) -> None:
            nonlocal stopping
            stopping = True
            dispatcher.stop()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        while not stopping:
            try:
                dispatcher.run()
            except AWAY as error:
                log.warning("dispatcher starts over: %s", error)
                connections.close_all()
                time.sleep(0.5)

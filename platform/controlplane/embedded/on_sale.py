"""Workers of the models that are on sale beyond those of BRIGADE_MODEL: they come and go with the catalogue while all runs.

`model_add` and `model_remove` touch the folder of models after they have written the catalogue, so a look at the folder's time of
change is enough: the database, which may be frozen, is asked only when something happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connections

from controlplane.catalog.selectors import served_models
from controlplane.embedded.children import model_workers, program_child
from controlplane.embedded.screen import say
from controlplane.embedded.supervisor import Child, Supervisor

Sold = tuple[str, datetime]  # a name that is sold again may mean other files


@dataclass(frozen=True, slots=True)
class _Workers:
    place: int  # the number in their slots
    children: list[Child]


class OnSale:
    def __init__(self, supervisor: Supervisor, port: int) -> None:
        self._supervisor, self._port = supervisor, port
        self._workers: dict[Sold, _Workers] = {}
        self._seen: int | None = None

    def follow(self) -> None:
        """Returns soon; where the database does not answer the next call tries again."""
        changed = settings.DATA.models.stat().st_mtime_ns
        if changed == self._seen:
            return
        try:
            wanted = _wanted()
        except DatabaseError:
            return
        finally:
            connections.close_all()
        self._seen = changed
        for sold in [*self._workers.keys() - wanted]:
            self._end(sold)
        for sold in sorted(wanted - self._workers.keys()):
            self._start(sold)

    def _start(self, sold: Sold) -> None:
        name, _ = sold
        say(f"{name} is on sale; its workers start")
        taken = {workers.place for workers in self._workers.values()}
        place = next(number for number in range(len(settings.MODELS), 10_000) if number not in taken)
        children = [program_child(program, self._port) for program in model_workers(name, place)]
        self._workers[sold] = _Workers(place, children)
        for child in children:
            self._supervisor.start(child)

    def _end(self, sold: Sold) -> None:
        say(f"{sold[0]} is on sale no more; its workers end")
        workers = self._workers.pop(sold)
        self._supervisor.remove(workers.children)
        for child in workers.children:
            settings.DATA.metrics_socket(child.name).unlink(missing_ok=True)


def _wanted() -> set[Sold]:
    extra = [model for model in served_models() if model.name not in settings.MODELS]
    return {(model.name, model.created_at) for model in extra if (settings.DATA.models / model.name).is_dir()}

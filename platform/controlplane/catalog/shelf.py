"""Puts models on sale and takes them off. Files come before the catalogue's row, and leave after it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from billing.errors import PriceMissing
from billing.pricing.selectors import Tariff, prices_for
from controlplane.catalog.models import ServedModel, ServiceTier
from controlplane.catalog.services import catalog_seed
from inference.coordination.models import Worker, WorkerState
from inference.coordination.registry import model_drain
from inference.database import query
from inference.engine.trial import model_try
from inference.requests.selectors import open_of_model
from inference.text import model_revision
from inference.text.folders import ORACLE_KINDS
from inference.text.hub import HUB_NAME, hub_download
from inference.text.model_files import KNOWN_MODELS
from inference.text.model_store import model_store

Say = Callable[[str], None]

GATEWAYS_NOTICE_S = 2.0  # until every gateway has read the catalogue again
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class ShelfError(Exception):
    """The model cannot be added or removed.

    model_name_invalid   nothing that may be a folder's name, or one that is reserved
    model_source_unknown neither a folder nor a name of a hub
    model_unknown        neither in the catalogue nor among the folders
    model_is_default     one that `manage.py serve` puts on sale at each start
    model_in_use         requests of it are open
    """

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Listed:
    name: str
    context_length: int
    enabled: bool
    revision: str
    workers: int  # that are alive
    tariffs: dict[str, Tariff | None]  # by service tier


def model_add(source: str, name: str | None, say: Say) -> ServedModel:
    """Checks everything and generates two tokens before anything is to be seen; then files, row and prices.

    Repeating it changes nothing. Raises ShelfError, ModelFetchError, ModelFolderError.
    """
    name = _new_name(name or _name_of(source))
    folder = _source(source, say)
    with model_store(settings.DATA.models) as store:
        staged = store.stage(folder, name, say)
        say("opening it, and generating two tokens")
        text = model_try(staged)
        say(f"its files are {'stored' if store.publish(staged) else 'there already'}: {settings.DATA.models / name}")
        model = catalog_seed(model=name)
        ServedModel.objects.filter(name=name).update(enabled=True)
    if not text.has_chat_template:
        say("it has no chat template: chats are refused, /v1/completions works")
    return model


def model_remove(name: str, say: Say) -> None:
    """Raises ShelfError, ModelFetchError; where requests are open the model is on sale as before."""
    if name in settings.MODELS:
        raise ShelfError(
            f"{name} is a model that BRIGADE_MODEL names: each start needs its files. Take it out there first.",
            code="model_is_default",
        )
    known = ServedModel.objects.filter(name=name).update(enabled=False)
    if not known and not (_NAME.fullmatch(name) and (settings.DATA.models / name).is_dir()):
        raise ShelfError(f"There is no model {name!r}.", code="model_unknown")
    with model_store(settings.DATA.models) as store:
        if known:
            say("off sale; waiting until every gateway knows")
            time.sleep(GATEWAYS_NOTICE_S)
            _delete_unless_open(name)
        store.discard(name)


def _delete_unless_open(name: str) -> None:
    if count := open_of_model(name):
        ServedModel.objects.filter(name=name).update(enabled=True)
        raise ShelfError(f"{name} has {count} open requests. It is on sale again; try later.", code="model_in_use")
    model_drain(name)  # the name may come back with other files before they end
    ServedModel.objects.filter(name=name).delete()


def models_listed() -> list[Listed]:
    tiers = list(ServiceTier.objects.filter(enabled=True).values_list("name", flat=True))
    return [_listed(model, tiers) for model in ServedModel.objects.all()]


def _listed(model: ServedModel, tiers: list[str]) -> Listed:
    folder = settings.DATA.models / model.name
    return Listed(
        name=model.name,
        context_length=model.context_length,
        enabled=model.enabled,
        revision=model_revision(folder) if folder.exists() else "",
        workers=Worker.objects.filter(model=model.name, state=WorkerState.READY).count(),
        tariffs={tier: _tariff(model.name, tier) for tier in tiers},
    )


def _tariff(model: str, tier: str) -> Tariff | None:
    try:
        ((now,),) = query("SELECT clock_timestamp()")
        return prices_for(model=model, service_tier=tier, at=now)
    except PriceMissing:
        return None


def _new_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ShelfError(f"{name!r} is no name: letters, digits and . _ - only, at most 100.", code="model_name_invalid")
    if name in KNOWN_MODELS or name in ORACLE_KINDS:
        raise ShelfError(f"{name!r} is the name of a model that Brigade brings along.", code="model_name_invalid")
    return name


def _name_of(source: str) -> str:
    return Path(source).resolve().name if Path(source).is_dir() else source.partition("@")[0].rpartition("/")[2]


def _source(source: str, say: Say) -> Path:
    folder = Path(source)
    if folder.is_dir():
        return folder
    name, _, revision = source.partition("@")
    if not HUB_NAME.fullmatch(name):
        raise ShelfError(f"{source} is neither a folder nor a hub's OWNER/NAME[@REVISION].", code="model_source_unknown")
    say(f"fetching {source}")
    return hub_download(name, revision or None)

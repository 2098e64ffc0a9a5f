"""`manage.py model_add`, `model_list` and `model_remove`."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone
from safetensors.torch import load_file, save_file

from billing.pricing.models import PriceBook
from controlplane.catalog import shelf
from controlplane.catalog.models import ServedModel
from controlplane.catalog.selectors import served_models
from controlplane.catalog.services import PRICES_NANO_USD, TIERS
from controlplane.embedded.paths import DataFolder
from inference.contracts import KVLayout, PoolCounters
from inference.coordination.models import Worker, WorkerState
from inference.coordination.registry import worker_register
from inference.requests.models import InferenceRequest, State
from inference.text import open_text
from tests.checkpoints import write_checkpoint
from tests.hub import hub


@pytest.fixture
def models(tmp_path: Path, settings: Any, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installation's models."""
    monkeypatch.setattr(shelf, "GATEWAYS_NOTICE_S", 0.0)
    settings.DATA = DataFolder(tmp_path / "data")
    return tmp_path / "data" / "models"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "small")


def run(command: str, *arguments: str) -> str:
    output = StringIO()
    call_command(command, *arguments, stdout=output)
    return output.getvalue()


def refused(command: str, *arguments: str) -> str:
    with pytest.raises(CommandError) as raised:
        run(command, *arguments)
    return str(raised.value)


def on_sale() -> list[str]:
    return [model.name for model in served_models()]


def left_in(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if path.name != ".fetch.lock") if models.exists() else []


def request_open(model: str) -> InferenceRequest:
    now, unique = timezone.now(), uuid.uuid4()
    return InferenceRequest.objects.create(
        id=unique,
        tenant_id=unique,
        project_id=unique,
        key_id=unique,
        model=model,
        service_tier="default",
        policy={},
        priority=100,
        stream=False,
        prompt_tokens=1,
        max_tokens=1,
        created_at=now,
        deadline_at=now + timedelta(minutes=1),
    )


def worker_alive(slot: str, model: str) -> None:
    layout = KVLayout(model, "r", 1, 1, 2, 16, "float32")
    worker_register(
        slot=slot, roles=("prefill",), model=model, layout=layout, device="cpu", arena="", pool=PoolCounters(4, 0, 0, 0, 4), load={}
    )


def test_a_folder_goes_on_sale_with_its_files_and_a_price_in_every_tier(models: Path, small: Path) -> None:
    output = run("model_add", str(small))
    assert on_sale() == left_in(models) == ["small"]
    assert ServedModel.objects.get().context_length == 256
    assert open_text(models / "small").encode("fox") == open_text(small).encode("fox")
    (listed,) = json.loads(run("model_list", "--json"))
    for tier, _, _, percent in TIERS:
        amounts = {price["meter"]: price["unit_price_nano_usd"] for price in listed["prices"][tier]}
        assert amounts["decode"] == PRICES_NANO_USD["output_nano_usd"] * percent // 100
        assert f"  {tier}: " in output
    assert "NO PRICE" not in output
    assert "copying model.safetensors" in output


def test_adding_twice_changes_nothing(models: Path, small: Path) -> None:
    run("model_add", str(small), "--name", "mine")
    before = [*ServedModel.objects.values()], [*PriceBook.objects.values()], (models / "mine").stat().st_ino
    assert "there already" in run("model_add", str(small), "--name", "mine")
    assert before == ([*ServedModel.objects.values()], [*PriceBook.objects.values()], (models / "mine").stat().st_ino)


def test_another_model_does_not_take_the_place_of_one_on_sale(models: Path, small: Path, tmp_path: Path) -> None:
    run("model_add", str(small), "--name", "mine")
    revision = open_text(models / "mine").revision
    assert "model_name_taken" in refused("model_add", str(write_checkpoint(tmp_path / "other", seed=1)), "--name", "mine")
    assert open_text(models / "mine").revision == revision
    assert on_sale() == left_in(models) == ["mine"]


def test_what_a_killed_add_left_is_no_obstacle(models: Path, small: Path) -> None:
    run("model_add", str(small))
    ServedModel.objects.all().delete()  # it was killed before the catalogue's row
    (models / ".fetch-killed" / "small").mkdir(parents=True)
    run("model_add", str(small))
    assert on_sale() == left_in(models) == ["small"]


def break_config(folder: Path) -> None:
    edit = json.loads((folder / "config.json").read_text()) | {"architectures": ["Other"]}
    (folder / "config.json").write_text(json.dumps(edit))


def break_computation(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.full((48,), float("nan"))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("break_", "code"), [(break_config, "checkpoint_architecture"), (break_computation, "checkpoint_computation")]
)
def test_a_model_with_a_fault_is_never_seen(models: Path, small: Path, break_: Any, code: str) -> None:
    break_(small)
    assert code in refused("model_add", str(small))
    assert on_sale() == left_in(models) == []


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "x" * 101, "tiny", "smollm2-135m-instruct"])
def test_a_name_that_is_none_or_reserved_is_refused(models: Path, small: Path, name: str) -> None:
    if name == "":
        small = small.rename(small.parent / "no name")
    assert "model_name_invalid" in refused("model_add", str(small), *(["--name", name] if name else []))
    assert left_in(models) == []


def test_a_folder_may_be_called_as_it_likes_when_a_name_is_given(models: Path, small: Path) -> None:
    run("model_add", str(small.rename(small.parent / "a @ b")), "--name", "fine")
    assert on_sale() == ["fine"]


def test_a_source_that_is_neither_folder_nor_hub_name_is_refused(models: Path) -> None:
    assert "model_source_unknown" in refused("model_add", "/nowhere/at/all")


def test_a_model_without_template_is_sold_with_a_word_about_it(models: Path, small: Path) -> None:
    (small / "chat_template.jinja").unlink()
    assert "no chat template" in run("model_add", str(small))


def test_a_removed_model_is_off_sale_its_files_are_gone_and_its_workers_take_no_work(models: Path, small: Path) -> None:
    run("model_add", str(small))
    run("model_add", str(small), "--name", "other")
    worker_alive("p1", "small")
    worker_alive("p2", "other")
    run("model_remove", "small")
    assert dict(Worker.objects.values_list("slot", "state")) == {"p1": WorkerState.DRAINING, "p2": WorkerState.READY}
    assert on_sale() == left_in(models) == ["other"]
    assert "model_unknown" in refused("model_remove", "small")


def test_a_model_with_open_requests_is_not_removed(models: Path, small: Path) -> None:
    run("model_add", str(small))
    request = request_open("small")
    assert "model_in_use" in refused("model_remove", "small")
    assert on_sale() == left_in(models) == ["small"]
    InferenceRequest.objects.filter(id=request.id).update(state=State.CANCELLED, finished_at=timezone.now())
    run("model_remove", "small")
    assert on_sale() == left_in(models) == []


def test_files_that_a_killed_removal_left_can_be_removed(models: Path, small: Path) -> None:
    run("model_add", str(small))
    ServedModel.objects.all().delete()
    run("model_remove", "small")
    assert left_in(models) == []


@pytest.mark.parametrize("name", ["..", "../data", "nothing"])
def test_nothing_but_a_model_is_removed(models: Path, small: Path, name: str) -> None:
    run("model_add", str(small))
    assert "model_unknown" in refused("model_remove", name)
    assert left_in(models) == ["small"]


def test_the_default_model_is_not_removed(models: Path, settings: Any) -> None:
    said = refused("model_remove", settings.MODEL)
    assert "model_is_default" in said
    assert "BRIGADE_MODEL names: each start needs its files" in said


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hubs_model_is_fetched_checked_and_sold(
    models: Path, small: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small / "pytorch_model.bin").write_bytes(b"pickled")
    with hub("acme/Small-1B", small) as (address, fetched):
        monkeypatch.setenv("HF_ENDPOINT", address)
        run("model_add", "acme/Small-1B")
        assert not any(path.endswith(".bin") for path in fetched)
        first = len(fetched)
        assert "there already" in run("model_add", "acme/Small-1B")
        assert not any("resolve" in path for path in fetched[first:])  # the cache has them
        assert "hub_model_unknown" in refused("model_add", "acme/other")
    assert on_sale() == left_in(models) == ["Small-1B"]
    assert open_text(models / "Small-1B").encode("fox") == open_text(small).encode("fox")
    assert not any(path.is_symlink() for path in (models / "Small-1B").iterdir())


def test_without_a_hub_the_error_says_what_to_do(models: Path, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    message = refused("model_add", "acme/Small-1B")
    assert all(part in message for part in ("hub_unreachable", "http://127.0.0.1:9", "HF_ENDPOINT", "give its path"))
    assert on_sale() == left_in(models) == []

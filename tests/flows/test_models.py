"""Two models at once, of one shape and one vocabulary but other weights: whatever were mixed up would show in the answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from controlplane.embedded.paths import DataFolder
from inference.contracts import SamplingParams
from inference.engine.loading import load_model
from inference.engine.reference import reference
from inference.text import ChatMessage, open_text
from tests.checkpoints import write_checkpoint
from tests.flows.cast import client, kill_worker, receipt, say, until
from tests.flows.conftest import START_TIMEOUT_S, Stack, free_port, launch, serving

MODELS = ("red", "blue")
TOKENS = 12
PROMPT = "the quick brown fox jumps over the lazy dog"


@dataclass(frozen=True, slots=True)
class Kitchen:
    stack: Stack
    wanted: dict[str, str]  # model -> what it answers to PROMPT, greedily

    def ask(self, model: str) -> tuple[str, str]:
        """The answer and the request's id."""
        chat = client(self.stack).chat.completions.create(model=model, messages=say(PROMPT), max_tokens=TOKENS, temperature=0)
        return chat.choices[0].message.content or "", chat.id


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    data = tmp_path_factory.mktemp("models") / "data"
    folders = {name: write_checkpoint(data / "models" / name, seed=seed) for seed, name in enumerate(MODELS)}
    wanted = {name: answer(folder) for name, folder in folders.items()}
    with serving(data, {"BRIGADE_MODEL": ",".join(MODELS)}) as running:
        yield Kitchen(running, wanted)


def answer(folder: Path) -> str:
    text = open_text(folder)
    prompt = text.render_chat([ChatMessage("user", PROMPT)])
    ids = reference(load_model(folder), prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0), eos_ids=text.eos_ids)
    return text.decode(ids)


def test_both_are_listed_and_no_other_is_found(kitchen: Kitchen) -> None:
    assert {model.id for model in client(kitchen.stack).models.list()} == set(MODELS)
    with pytest.raises(openai.NotFoundError) as refused:
        kitchen.ask("green")
    assert refused.value.code == "model_not_found"


def test_each_answers_for_itself_on_its_own_workers_and_from_its_own_cache(kitchen: Kitchen) -> None:
    assert kitchen.wanted["red"] != kitchen.wanted["blue"]
    cached = {}
    for again in (False, True):
        for index, model in enumerate(MODELS):
            found, request_id = kitchen.ask(model)
            told = receipt(kitchen.stack, request_id)
            assert found == kitchen.wanted[model]
            assert (told["path"], told["workers"]["prefill"], told["workers"]["decode"]) == (
                "split",
                f"prefill-{index}",
                f"decode-{index}",
            )
            cached[model, again] = told["tokens"]["cached"]["device"]
    assert all(cached[model, True] > cached[model, False] == 0 for model in MODELS)


def test_together_they_answer_as_alone(kitchen: Kitchen) -> None:
    asked = MODELS * 6
    with ThreadPoolExecutor(len(asked)) as crowd:
        answers = [found for found, _ in crowd.map(kitchen.ask, asked)]
    assert answers == [kitchen.wanted[model] for model in asked]


def test_the_death_of_ones_workers_leaves_the_other_served(kitchen: Kitchen) -> None:
    kitchen.ask("blue")
    for slot in ("prefill-1", "decode-1"):
        kill_worker(kitchen.stack, slot)
    assert kitchen.ask("red")[0] == kitchen.wanted["red"]
    until(lambda: kitchen.stack.output.read_text(), lambda said: said.count("worker-prefill-1 ended") == 1)
    found = until(lambda: _try(kitchen, "blue"), bool)
    assert found == kitchen.wanted["blue"]


def test_a_model_that_does_not_open_stops_the_start_with_its_fault(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "data" / "models" / "red")
    (folder / "config.json").write_text("{")
    stack = launch(DataFolder(tmp_path / "data"), free_port(), {"BRIGADE_MODEL": "red"})
    try:
        assert stack.process.wait(START_TIMEOUT_S) == 1
        assert "Brigade could not start: config.json is no JSON" in stack.output.read_text()
    finally:
        stack.stop()


def _try(kitchen: Kitchen, model: str) -> str:
    try:
        return kitchen.ask(model)[0]
    except openai.InternalServerError:  # a 503 while nobody serves it
        return ""

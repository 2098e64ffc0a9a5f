"""A model is added to a running copy and removed from it, beside one that is served all the while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from inference.contracts import SamplingParams
from inference.engine.loading import load_model
from inference.engine.reference import reference
from inference.text import ChatMessage, open_text
from tests.checkpoints import write_checkpoint
from tests.flows.cast import ask, client, database, expected, rated, say, until
from tests.flows.conftest import Stack, serving

PROMPT, TOKENS = "the quick brown fox jumps over the lazy dog", 12
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shelf") / "data"


@pytest.fixture(scope="module")
def stack(data: Path) -> Iterator[Stack]:
    """A copy of its own, which the last test ends."""
    with serving(data) as running:
        yield running


def wanted(folder: Path) -> str:
    text = open_text(folder)
    prompt = text.render_chat([ChatMessage("user", PROMPT)])
    ids = reference(load_model(folder), prompt, SamplingParams(max_tokens=TOKENS, temperature=0.0), eos_ids=text.eos_ids)
    return text.decode(ids)


def listed(stack: Stack) -> set[str]:
    return {model.id for model in client(stack).models.list()}


def answer(stack: Stack, model: str) -> tuple[str, str]:
    chat = client(stack).chat.completions.create(model=model, messages=say(PROMPT), max_tokens=TOKENS, temperature=0)
    return chat.choices[0].message.content or "", chat.id


def first_answer(stack: Stack, model: str) -> tuple[str, str]:
    """As soon as its workers are there."""

    def served() -> bool:
        return {row["workers"] for row in stack.manage("model_list", "--json") if row["name"] == model} == {2}

    until(served, bool, 90.0)

    def tried() -> tuple[str, str] | None:
        try:
            return answer(stack, model)
        except (openai.InternalServerError, openai.NotFoundError):  # a gateway's copy may be a second old
            return None

    found = until(tried, bool)
    assert found is not None
    return found


def workers_of(stack: Stack, model: str) -> list[str]:
    with database(stack) as connection:
        rows = connection.execute("SELECT slot FROM coordination_worker WHERE model = %s AND state = 'ready'", [model])
        return sorted(slot for (slot,) in rows)


def test_a_model_is_added_while_another_is_served(stack: Stack, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "green", "qwen3", head_dim=16)
    added = stack.run("model_add", str(folder))
    assert added.returncode == 0, added.stderr
    text, request_id = first_answer(stack, "green")
    told = rated(stack, request_id)
    assert text == wanted(folder)
    assert (told["path"], told["workers"]) == ("split", {"prefill": "prefill-1", "decode": "decode-1"})
    assert sum(int(line["amount_nano_usd"]) for line in told["lines"]) > 0
    assert ask(stack, "Hi").choices[0].message.content == expected("Hi", 24)
    assert listed(stack) == {"tiny", "green"}
    assert 'brigade_up{process="worker-decode-1"} 1.0' in stack.run("metrics").stdout


def test_a_name_that_is_sold_again_means_the_new_files(stack: Stack, tmp_path: Path) -> None:
    for seed in (3, 4):
        folder = write_checkpoint(tmp_path / str(seed), seed=seed)
        added = stack.run("model_add", str(folder), "--name", "again")
        assert added.returncode == 0, added.stderr
        assert first_answer(stack, "again")[0] == wanted(folder)
        assert stack.run("model_remove", "again").returncode == 0


def test_a_model_without_chat_template_says_so_and_completes(stack: Stack, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    assert stack.run("model_add", str(folder)).returncode == 0
    until(lambda: workers_of(stack, "plain"), lambda found: len(found) == 2, 90.0)
    until(lambda: "plain" in listed(stack), bool)
    with pytest.raises(openai.BadRequestError, match=r"no chat template.*/v1/completions"):
        answer(stack, "plain")
    completion = client(stack).completions.create(model="plain", prompt=PROMPT, max_tokens=TOKENS, temperature=0)
    text = open_text(folder)
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    ids = reference(load_model(folder), text.encode_prompt(PROMPT), sampling, eos_ids=text.eos_ids)
    assert completion.choices[0].text == text.decode(ids)


def test_it_is_served_again_after_a_start_and_once_removed_the_others_are_served_on(stack: Stack, data: Path) -> None:
    stack.stop()
    with serving(data) as again:
        _remove(again, data)


def _remove(stack: Stack, data: Path) -> None:
    assert first_answer(stack, "green")[0] == wanted(data / "models" / "green")
    removed = stack.run("model_remove", "green")
    assert removed.returncode == 0, removed.stderr
    assert listed(stack) == {"tiny", "plain"}
    with pytest.raises(openai.NotFoundError) as refused:
        answer(stack, "green")
    assert refused.value.code == "model_not_found"
    until(lambda: stack.output.read_text(), lambda said: "green is on sale no more" in said)
    assert (workers_of(stack, "green"), workers_of(stack, "tiny")) == ([], ["decode-0", "prefill-0"])
    assert ask(stack, "Hi").choices[0].message.content == expected("Hi", 24)

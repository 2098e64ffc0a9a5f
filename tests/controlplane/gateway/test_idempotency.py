"""Idempotency-Key: one request, one bill, one answer, however often and however fast a call is sent."""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest
from django.db import connection, transaction

from billing.holds.models import Hold, HoldAccount
from controlplane.errors import IdempotencyInProgress
from controlplane.gateway import limits
from controlplane.idempotency.models import IdempotencyKey
from controlplane.idempotency.selectors import key_find
from controlplane.idempotency.services import KEEP_S, Claim, key_claim, keys_sweep
from controlplane.keys.models import ApiKey
from controlplane.keys.services import api_key_create
from controlplane.tenants.services import project_create
from inference.contracts import TokenLogprob
from inference.database import execute, query, tenant_scope
from inference.requests.models import FINAL, RequestBody, State
from inference.requests.sweeper import bodies_sweep
from inference.streams import StreamWriter, stream_key
from inference.usage.models import UsageRow
from tests.controlplane.conftest import Job, ScriptedWorker, Stage, Tenant, chat, open_requests, request_rows, tiny_text, wait_for

CHAT = {"model": "tiny", "messages": chat()}


def post(
    gateway: str, tenant: Tenant, key: str = "k-1", body: dict[str, Any] = CHAT, path: str = "chat/completions", **more: Any
) -> httpx.Response:
    headers = {"Authorization": f"Bearer {tenant.secret}", "Idempotency-Key": key}
    return httpx.post(f"{gateway}/v1/{path}", json=body, headers=headers, timeout=more.pop("timeout", 20), **more)


def keys() -> int:
    [(count,)] = query("SELECT count(*) FROM idempotency_key")
    return int(count)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(autouse=True)
def no_keys(stage: Stage) -> None:
    execute("DELETE FROM idempotency_key")


def honest(job: Job) -> None:
    """As `greet`, with the tokens that the text has: what is logged shows the same."""
    sampling, known = job.sampling, TokenLogprob(-0.5, ((65, -0.5),))
    prompt = (None, *[known] * (job.prompt_tokens - 1)) * (sampling["prompt_logprobs"] is not None)
    for choice in range(sampling["n"]):
        first = (known._replace(prompt=prompt if choice == 0 else ()),)
        told = sampling["logprobs"] is not None
        job.say("H", (72,), choice=choice, logprobs=first * told)
        job.say("i", (105,), choice=choice, finish="length", logprobs=(known,) * told)
    job.done()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, "max_tokens": 2}),
        ("completions", {"model": "tiny", "prompt": ["ab", "c"], "n": 2, "logprobs": 1, "echo": True, "max_tokens": 2}),
    ],
)
def test_a_repeated_call_gets_the_same_bytes_and_no_second_bill(
    gateway: str, stage: Stage, worker: ScriptedWorker, path: str, body: dict[str, Any]
) -> None:
    worker.script = honest
    first = post(gateway, stage.acme, body=body, path=path)
    rows, holds = len(request_rows()), Hold.objects.filter(tenant_id=stage.acme.organisation.id).count()
    time.sleep(1.1)  # another second: `created` must not be that of the repetition
    again = post(gateway, stage.acme, body=body, path=path)
    assert first.status_code == 200
    assert (again.status_code, again.content) == (200, first.content)
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-request-id"] != first.headers["x-request-id"]
    assert (len(request_rows()), Hold.objects.filter(tenant_id=stage.acme.organisation.id).count()) == (rows, holds)
    assert int(again.headers["x-ratelimit-remaining-tokens"]) >= int(first.headers["x-ratelimit-remaining-tokens"])
    wait_for(lambda: open_requests() == 0)


def test_an_answer_whose_stream_is_forgotten_comes_from_the_rows(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.speak("Let us cook 김치").done()
    first = post(gateway, stage.acme)
    StreamWriter.shared()._redis.delete(stream_key(str(request_rows()[0].id)))
    assert post(gateway, stage.acme).content == first.content


def test_order_and_blanks_of_the_body_do_not_count(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = honest
    first = post(gateway, stage.acme)
    text = '{ "messages": [ {"content": "Hi", "role": "user"} ],\n "model": "tiny" }'
    headers = {"Authorization": f"Bearer {stage.acme.secret}", "Idempotency-Key": "k-1"}
    assert httpx.post(f"{gateway}/v1/chat/completions", content=text, headers=headers).content == first.content
    assert len(request_rows()) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {**CHAT, "temperature": 0.5}),
        ("chat/completions", {**CHAT, "stream": True}),
        ("completions", {"model": "tiny", "prompt": "Hi"}),
    ],
)
def test_another_body_under_the_same_key_is_refused(
    gateway: str, stage: Stage, worker: ScriptedWorker, path: str, body: dict[str, Any]
) -> None:
    assert post(gateway, stage.acme).status_code == 200
    assert code(post(gateway, stage.acme, body=body, path=path)) == (422, "idempotency_key_reused")
    assert len(request_rows()) == 1


def test_a_stream_is_replayed_as_a_stream(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = honest
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 2}
    first, again = post(gateway, stage.acme, body=body), post(gateway, stage.acme, body=body)
    assert again.headers["content-type"].startswith("text/event-stream")
    assert again.headers["idempotency-replayed"] == "true"
    assert again.text == first.text
    assert first.text.endswith("data: [DONE]\n\n")
    assert len(request_rows()) == 1


def test_equal_calls_at_once_make_one_request_and_all_get_its_answer(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    def script(job: Job) -> None:
        time.sleep(0.5)
        job.speak("slowly").done()

    worker.script = script
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(gateway, stage.acme), range(8)))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" in answer.headers for answer in answers) == 7
    assert len(request_rows()) == Hold.objects.filter(tenant_id=stage.acme.organisation.id).count() == 1
    wait_for(lambda: open_requests() == 0)


def test_who_joins_a_running_stream_reads_it_from_the_beginning(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    joined = threading.Event()

    def script(job: Job) -> None:
        job.speak("from the ")
        assert joined.wait(20)
        job.speak("beginning").done()

    worker.script = script
    body = {**CHAT, "stream": True}
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(post, gateway, stage.acme, body=body)
        wait_for(lambda: request_rows() and request_rows()[0].state == State.PREFILLING)
        second = pool.submit(post, gateway, stage.acme, body=body)
        wait_for(lambda: open_requests() == 2)
        joined.set()
        texts = [answer.result().text for answer in (first, second)]
    contents = ["".join(part.split('"content":"')[1].split('"')[0] for part in text.split("data: ")[2:-2]) for text in texts]
    assert contents[0].startswith("from the beginning")
    assert contents[0] == contents[1]


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_lost_its_connection_comes_back_for_its_answer(
    gateway: str, stage: Stage, worker: ScriptedWorker, stream: bool
) -> None:
    """It would be cancelled without a key. With one it runs on, and is paid for once."""
    gone = threading.Event()

    def script(job: Job) -> None:
        assert gone.wait(20)
        job.speak("still here").done()

    worker.script = script
    body = {**CHAT, "stream": stream}
    with pytest.raises(httpx.TimeoutException):
        post(gateway, stage.acme, body=body, timeout=1)
    time.sleep(0.5)
    assert [(row.state, row.cancel_requested_at, row.gateway_id) for row in request_rows()] == [(State.PREFILLING, None, None)]
    assert open_requests() == 1, "its place in the limits stays taken"
    gone.set()
    answer = post(gateway, stage.acme, body=body)
    assert answer.status_code == 200
    assert "still here" in answer.text or stream
    assert answer.headers["idempotency-replayed"] == "true"
    assert len(request_rows()) == 1
    wait_for(lambda: open_requests() == 0)


def test_who_joins_and_goes_disturbs_nobody(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    gone = threading.Event()

    def script(job: Job) -> None:
        assert gone.wait(20)
        job.speak("undisturbed").done()

    worker.script = script
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, gateway, stage.acme)
        wait_for(lambda: request_rows() and request_rows()[0].state == State.PREFILLING)
        with pytest.raises(httpx.TimeoutException):
            post(gateway, stage.acme, timeout=1)
        wait_for(lambda: open_requests() == 1)
        gone.set()
        assert first.result().status_code == 200
    assert request_rows()[0].cancel_requested_at is None


REFUSALS: list[tuple[dict[str, Any], int]] = [
    ({**CHAT, "n": 0}, 400),
    ({**CHAT, "model": "nope"}, 404),
    ({**CHAT, "max_tokens": 9_999}, 400),
]


@pytest.mark.parametrize(("body", "status"), REFUSALS)
def test_a_refused_call_leaves_no_key(gateway: str, stage: Stage, body: dict[str, Any], status: int) -> None:
    assert post(gateway, stage.acme, body=body).status_code == status
    assert keys() == 0


def test_a_call_that_nobody_can_pay_or_that_comes_too_often_leaves_no_key(
    gateway: str, stage: Stage, worker: ScriptedWorker
) -> None:
    account = HoldAccount.objects.filter(tenant_id=stage.acme.organisation.id)
    account.update(limit_nano_usd=1)
    assert code(post(gateway, stage.acme)) == (429, "insufficient_quota")
    assert keys() == 0
    account.update(limit_nano_usd=10**12)
    ApiKey.objects.filter(id=stage.acme.key.id).update(tokens_per_minute=1)
    time.sleep(limits.KEY_CACHE_S + 0.1)
    assert code(post(gateway, stage.acme)) == (429, "rate_limit_exceeded")
    assert keys() == 0
    ApiKey.objects.filter(id=stage.acme.key.id).update(tokens_per_minute=10**6)
    time.sleep(limits.KEY_CACHE_S + 0.1)
    assert post(gateway, stage.acme).status_code == 200


@pytest.mark.parametrize("ending", ["failed", "expired"])
def test_what_ended_without_an_answer_and_a_bill_is_made_anew(
    gateway: str, stage: Stage, worker: ScriptedWorker, ending: str
) -> None:
    worker.script = lambda job: job.fail("engine_error", "The engine failed.")
    assert code(post(gateway, stage.acme)) == (500, "engine_error")
    execute("UPDATE inference_request SET state = %s", [ending])
    worker.script = lambda job: job.speak("second time").done()
    answer = post(gateway, stage.acme)
    assert answer.status_code == 200
    assert "idempotency-replayed" not in answer.headers
    assert post(gateway, stage.acme).content == answer.content
    assert len(request_rows()) == 2


TWO = {"model": "tiny", "prompt": ["ab", "c"], "max_tokens": 2}


def fails(job: Job) -> None:
    job.fail("engine_error", "The engine failed.")


def billed() -> list[tuple[uuid.UUID, str]]:
    rows = UsageRow.objects.filter(billable=True).order_by("request_id", "meter")
    return list(rows.values_list("request_id", "meter"))


def post_two(gateway: str, stage: Stage) -> httpx.Response:
    return post(gateway, stage.acme, body=TWO, path="completions")


@pytest.mark.parametrize("ending", ["failed", "expired"])
def test_a_call_of_which_one_prompt_was_answered_and_billed_is_never_made_anew(
    gateway: str, stage: Stage, worker: ScriptedWorker, ending: str
) -> None:
    worker.script = lambda job: honest(job) if job.prompt == tiny_text().encode("ab") else fails(job)
    first = post_two(gateway, stage)
    assert code(first) == (500, "engine_error")
    wait_for(lambda: {row.state for row in request_rows()} == {State.DONE, State.FAILED})
    execute("UPDATE inference_request SET state = %s WHERE state = 'failed'", [ending])
    bill = billed()
    assert bill, "the prompt that was answered is billed"
    worker.script = honest
    for _ in range(2):
        again = post_two(gateway, stage)
        assert code(again) == code(first)
        assert again.json()["error"]["message"].endswith("Use a new Idempotency-Key to ask again.")
        assert again.headers["x-should-retry"] == "false"
    assert (len(request_rows()), billed()) == (2, bill)
    wait_for(lambda: open_requests() == 0)


def test_a_call_of_which_one_prompt_still_runs_is_not_made_anew(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    """The first prompt that is played fails; what the other comes to is not known yet."""
    asked_again = threading.Event()

    def script(job: Job) -> None:
        if worker.played == 0:
            fails(job)
        else:
            assert asked_again.wait(20)
            honest(job)

    worker.script = script
    assert code(post_two(gateway, stage)) == (500, "engine_error")
    wait_for(lambda: {row.state for row in request_rows()} == {State.FAILED, State.PREFILLING})
    assert code(post_two(gateway, stage)) == (500, "engine_error")
    asked_again.set()
    wait_for(lambda: {row.state for row in request_rows()} == {State.FAILED, State.DONE})
    assert code(post_two(gateway, stage)) == (500, "engine_error")
    assert len(request_rows()) == 2


def test_a_call_of_which_every_prompt_failed_is_made_anew_once_however_many_repeat_it(
    gateway: str, stage: Stage, worker: ScriptedWorker
) -> None:
    worker.script = fails
    assert code(post_two(gateway, stage)) == (500, "engine_error")
    wait_for(lambda: [row.state for row in request_rows()] == [State.FAILED] * 2)
    worker.script = honest
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post_two(gateway, stage), range(8)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert len(request_rows()) == 4


def test_of_two_claims_at_once_to_what_failed_the_second_gets_nothing(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    """It waits for the first, whose requests it cannot see when that commits."""
    worker.script = fails
    post(gateway, stage.acme)
    row = IdempotencyKey.objects.get()

    def claim() -> None:
        key = Claim(row.key, bytes(row.body_hash))
        key_claim(tenant_id=row.tenant_id, project_id=row.project_id, claim=key, request_ids=[uuid.uuid4()])

    def claim_and_part() -> None:
        try:
            claim()
        finally:
            connection.close()

    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            claim()
            second = pool.submit(claim_and_part)
            wait_for(lambda: query(waiting))
        with pytest.raises(IdempotencyInProgress):
            second.result()


def test_what_was_cancelled_is_told_again(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("Hel").wait_cancel()
    key = {"Authorization": f"Bearer {stage.acme.secret}"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, gateway, stage.acme)
        wait_for(lambda: request_rows() and request_rows()[0].state == State.PREFILLING)
        httpx.post(f"{gateway}/v1/requests/chatcmpl-{request_rows()[0].id.hex}/cancel", headers=key)
        assert code(first.result()) == (499, "request_cancelled")
    again = post(gateway, stage.acme)
    assert code(again) == (499, "request_cancelled")
    assert again.json()["error"]["message"].endswith("Use a new Idempotency-Key to ask again.")
    assert len(request_rows()) == 1


def test_an_answer_that_is_deleted_is_not_made_and_charged_again(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    assert post(gateway, stage.acme).status_code == 200
    assert bodies_sweep(keep_s=0) == 1
    assert code(post(gateway, stage.acme)) == (410, "idempotency_answer_gone")
    assert len(request_rows()) == 1


def test_a_key_is_kept_for_a_day_and_is_new_afterwards(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    post(gateway, stage.acme)
    age = "UPDATE idempotency_key SET created_at = clock_timestamp() - make_interval(secs => %s)"
    execute(age, [KEEP_S - 60])
    assert keys_sweep() == 0
    assert "idempotency-replayed" in post(gateway, stage.acme).headers
    execute(age, [KEEP_S + 1])
    assert "idempotency-replayed" not in post(gateway, stage.acme, body={**CHAT, "temperature": 0}).headers
    assert len(request_rows()) == 2
    execute(age, [KEEP_S + 1])
    assert (keys_sweep(), keys()) == (1, 0)


def test_equal_keys_of_other_tenants_and_projects_never_meet(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    project = project_create(tenant_id=stage.acme.organisation.id, name="second")
    key, secret = api_key_create(tenant_id=stage.acme.organisation.id, project_id=project.id, name="test")
    second = Tenant(stage.acme.organisation, project, key, secret)
    answers = [post(gateway, tenant) for tenant in (stage.acme, stage.rival, second)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["id"] for answer in answers}) == len(request_rows()) == 3
    assert not any("idempotency-replayed" in answer.headers for answer in answers)


def test_row_level_security_hides_keys_of_others(stage: Stage) -> None:
    acme, rival = stage.acme.organisation.id, stage.rival.organisation.id
    key_claim(tenant_id=acme, project_id=stage.acme.project.id, claim=Claim("k", b"h"), request_ids=[uuid.uuid4()])
    with tenant_scope(rival), connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE brigade_app")
        cursor.execute("SELECT count(*) FROM idempotency_key")
        assert cursor.fetchone() == (0,)
    assert key_find(tenant_id=rival, project_id=stage.acme.project.id, key="k") is None


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "caf\u00e9", "\x7f"])
def test_a_key_that_is_none_is_refused_by_name(gateway: str, stage: Stage, key: str) -> None:
    headers = [(b"Authorization", f"Bearer {stage.acme.secret}".encode()), (b"Idempotency-Key", key.encode("latin1"))]
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("Idempotency-Key", None), "some are no HTTP"
    assert request_rows() == []


@pytest.mark.parametrize("second", ["k-1", "k-2"])
def test_two_keys_in_one_call_are_refused(gateway: str, stage: Stage, second: str) -> None:
    headers = [("Authorization", f"Bearer {stage.acme.secret}"), ("Idempotency-Key", "k-1"), ("idempotency-key", second)]
    answer = httpx.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=headers)
    assert code(answer) == (400, "invalid_value")
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    assert request_rows() == []


def test_a_comma_in_a_key_makes_no_two_of_it(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    assert post(gateway, stage.acme, "k-1,k-2").status_code == 200


def test_without_a_key_equal_calls_are_two(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    headers = {"Authorization": f"Bearer {stage.acme.secret}"}
    for _ in range(2):
        assert httpx.post(f"{gateway}/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
    assert len(request_rows()) == 2
    assert keys() == 0


def test_figures_that_are_logged_come_back_with_the_answer(gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    worker.script = lambda job: job.say("a", (97,), finish="length", logprobs=(TokenLogprob(-0.1234567891234567),)).done()
    body = {**CHAT, "logprobs": True, "max_tokens": 1}
    first = post(gateway, stage.acme, body=body)
    StreamWriter.shared()._redis.delete(stream_key(str(request_rows()[0].id)))
    assert post(gateway, stage.acme, body=body).content == first.content
    assert all(row.state in FINAL for row in request_rows())
    assert RequestBody.objects.count() == 1

"""Requests: found by what people know of them, and the receipt, which is that of the rows."""

from __future__ import annotations

from datetime import UTC, timedelta
from decimal import Decimal

import pytest
from django.test import Client
from django.utils import timezone

from billing.metering.models import RatedLine, RatedRequest
from controlplane.console.display import usd
from controlplane.console.requests import public_id, receipt
from inference.requests.models import InferenceRequest, State
from inference.usage.models import Meter
from tests.controlplane.console.rows import MODEL, Tenant, rated, request_make
from tests.controlplane.console.test_entry import address

LIST = "requests_inferencerequest_changelist"


def listed(client: Client, **values: str) -> str:
    answer = client.get(address(LIST), values)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("form", ["chatcmpl-{0.hex}", "cmpl-{0.hex}", "{0.hex}", "{0}", "  chatcmpl-{0.hex} "])
def test_a_request_is_found_by_its_id_as_people_have_it(staff: Client, acme: Tenant, form: str) -> None:
    wanted, other = request_make(acme), request_make(acme)
    content = listed(staff, q=form.format(wanted.id))
    assert (public_id(wanted.id) in content, public_id(other.id) in content) == (True, False)


def test_a_search_for_something_else_finds_nothing(staff: Client, acme: Tenant) -> None:
    row = request_make(acme)
    assert public_id(row.id) not in listed(staff, q="chatcmpl-")


def test_filters_by_state_path_tenant_model_and_day(staff: Client, acme: Tenant, rival: Tenant) -> None:
    row = request_make(acme, path="fused")
    other = request_make(rival, state=State.FAILED, path="split", model="another", at=timezone.now() - timedelta(days=3))
    today = timezone.now().astimezone(UTC).date().isoformat()
    for values in ({"state__exact": "done"}, {"path": "fused"}, {"tenant": str(acme.id)}, {"model": MODEL}, {"day": today}):
        content = listed(staff, **values)
        assert (public_id(row.id) in content, public_id(other.id) in content) == (True, False), values


@pytest.mark.parametrize("values", [{"tenant": "x"}, {"day": "yesterday"}, {"state__exact": "'"}, {"p": "999999"}, {"nosuch": "1"}])
def test_a_filter_that_makes_no_sense_is_no_error(staff: Client, acme: Tenant, values: dict[str, str]) -> None:
    request_make(acme)
    assert staff.get(address(LIST), values).status_code in (200, 302)


def test_no_page_is_longer_than_fifty_rows(staff: Client, acme: Tenant) -> None:
    for _ in range(52):
        request_make(acme, state=State.QUEUED)
    for values in ({}, {"all": ""}):
        assert listed(staff, **values).count("chatcmpl-0") == 50


def test_the_receipt_adds_up(acme: Tenant) -> None:
    row = request_make(acme, prompt=1_000, cached=640, completion=50, recomputed=7)
    rated()
    shown = receipt(row)
    run = {fact.name: fact.value.text for fact in shown["run"]}
    assert (run["Prompt tokens, computed"], run["Prompt tokens, from cache"], run["Completion tokens"]) == ("360", "640", "50")
    total = RatedRequest.objects.get(request_id=row.id).total_nano_usd
    assert total > 0
    assert shown["lines"].foot[-1].text == usd(total, decimals=9)
    lines = {cells[0].text: [cell.text for cell in cells] for cells in shown["lines"].rows}
    assert lines["prompt tokens, computed"][2:] == ["360 tokens", "1", "$0.10 / 1M tokens", "0", "$0.000036000"]
    assert lines["prompt tokens, from cache"][1:] == ["device", "640 tokens", "1", "$0.01 / 1M tokens", "0", "$0.000006400"]
    assert [[cell.text for cell in cells] for cells in shown["not_charged"].rows] == [["recomputed tokens", "7 tokens"]]
    assert {cells[0].text: cells[3].text for cells in shown["usage"].rows}["recomputed tokens"] == "us"


def test_a_line_can_be_checked_by_hand_from_what_the_receipt_shows(acme: Tenant) -> None:
    for _ in range(2):
        row = request_make(acme, prompt=1_001)
        rated()
    line = RatedLine.objects.get(request_id=row.id, meter=Meter.KV_TOKEN_SECONDS)
    assert line.carry_in > 0
    (shown,) = [cells for cells in receipt(row)["lines"].rows if cells[0].text == "KV cache, token-seconds"]
    assert shown[2].text == f"{Decimal(line.quantity) / 1_000_000:,.6f} token-seconds"
    carried, unit_quantity = (int(number.replace(",", "")) for number in shown[5].text.split(" / "))
    assert (line.quantity * line.unit_price_nano_usd + carried) // unit_quantity == line.amount_nano_usd


def test_a_line_below_a_nano_dollar_is_not_shown_as_nothing(acme: Tenant) -> None:
    row = request_make(acme, prompt=1, cached=0, completion=0)
    rated()
    RatedLine.objects.filter(request_id=row.id).get(meter=Meter.KV_TOKEN_SECONDS, amount_nano_usd=0)
    amounts = {cells[0].text: cells[-1].text for cells in receipt(row)["lines"].rows}
    assert amounts["KV cache, token-seconds"] == "< $0.000000001"


@pytest.mark.parametrize(
    ("path", "reason", "words"),
    [
        ("split", "split", ""),
        ("fused", "decode_full", "the decode workers had no room"),
        ("split", "decode_moved", "the reserved decode worker was gone; another one went on"),
        ("fused", "unheard_of", "unheard_of"),
    ],
)
def test_the_paths_reason_is_in_words_and_no_repetition(acme: Tenant, path: str, reason: str, words: str) -> None:
    row = request_make(acme, path=path)
    row.path_reason = reason
    (fact,) = [fact for fact in receipt(row)["summary"] if fact.name == "Path"]
    assert (fact.value.text, fact.note) == (path, words)


def test_what_never_happened_is_a_dash(acme: Tenant) -> None:
    row = request_make(acme, state=State.CANCELLED)
    zeros = {"queue": 0.0, "prefill": 0.0, "transfer": 0.0, "ttft": None, "decode": 0.0, "total": 3.5}
    row.timing = {**zeros, "itl": {"p50": 0.0, "p95": 0.0, "p99": 0.0}}
    shown = {fact.name: fact.value.text for fact in receipt(row)["timings"]}
    assert {name for name, value in shown.items() if value == "—"} == set(shown) - {"Queue", "Total"}
    assert (shown["Queue"], shown["Total"]) == ("0.0 ms", "3.5 ms")


def test_the_timeline_counts_from_the_requests_birth(acme: Tenant) -> None:
    rows = receipt(request_make(acme))["events"].rows
    assert [row[0].text for row in rows] == ["queued", "prefilling", "ready", "decoding", "done"]
    assert [row[2].text for row in rows] == ["0.0 ms", "20.0 ms", "40.0 ms", "60.0 ms", "80.0 ms"]
    assert [row[3].text for row in rows][1:] == ["prefill-0", "prefill-0", "decode-0", "decode-0"]


def test_a_request_that_is_not_rated_says_why(acme: Tenant) -> None:
    assert receipt(request_make(acme, state=State.DECODING))["lines"].empty == "Still running."
    assert receipt(request_make(acme))["lines"].empty == "Not rated yet."


@pytest.mark.parametrize("state", list(State))
def test_the_page_opens_in_every_state(staff: Client, acme: Tenant, state: State) -> None:
    row = request_make(acme, state=state)
    rated()
    content = staff.get(address("requests_inferencerequest_change", row.id)).content.decode()
    assert public_id(row.id) in content
    assert acme.organisation.name in content


def test_a_request_of_a_tenant_that_is_gone_is_shown_by_ids(staff: Client, acme: Tenant) -> None:
    row = request_make(acme)
    acme.key.delete()
    acme.project.delete()
    acme.organisation.delete()
    content = staff.get(address("requests_inferencerequest_change", row.id)).content.decode()
    assert str(row.tenant_id) in content


def test_labels_and_messages_are_text(staff: Client, acme: Tenant) -> None:
    evil = "<img src=x onerror=alert(1)>"
    row = request_make(acme, labels={evil: evil}, error_message=evil)
    content = staff.get(address("requests_inferencerequest_change", row.id)).content.decode()
    assert evil not in content
    assert "&lt;img src=x" in content


def test_nothing_can_be_changed(staff: Client, acme: Tenant) -> None:
    row = request_make(acme)
    staff.post(address("requests_inferencerequest_change", row.id), {"state": "failed"})
    assert staff.post(address("requests_inferencerequest_delete", row.id), {"post": "yes"}).status_code == 403
    assert staff.get(address("requests_inferencerequest_add")).status_code == 403
    staff.post(address(LIST), {"action": "delete_selected", "_selected_action": str(row.id), "post": "yes"})
    assert InferenceRequest.objects.get(id=row.id).state == State.DONE


def test_a_stranger_sees_no_receipt(stranger: Client, acme: Tenant) -> None:
    row = request_make(acme)
    assert stranger.get(address("requests_inferencerequest_change", row.id)).status_code == 302

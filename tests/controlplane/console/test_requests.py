"""Requests: found by what people know of them, and the receipt, which is that of the rows."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from billing.metering.models import RatedRequest
from controlplane.console.display import usd
from controlplane.console.requests import public_id, receipt
from inference.requests.models import InferenceRequest, State
from tests.controlplane.console.rows import MODEL, Tenant, rated, request_make
from tests.controlplane.console.test_entry import address

LIST = "requests_inferencerequest_changelist"


def listed(client: Client, **values: str) -> str:
    answer = client.get(address(LIST), values)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("form", ["chatcmpl-{0.hex}", "{0.hex}", "{0}", "  chatcmpl-{0.hex} "])
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
    assert (run["Prompt computed"], run["Prompt from cache"], run["Completion"]) == ("360", "640", "50")
    total = RatedRequest.objects.get(request_id=row.id).total_nano_usd
    assert total > 0
    assert shown["lines"].foot[-1].text == usd(total)
    lines = {cells[0].text: [cell.text for cell in cells] for cells in shown["lines"].rows}
    assert lines["prefill_computed"][2:] == ["360 tokens", "1", "$0.10 / 1M tokens", "$0.000036"]
    assert lines["prefill_cached"][1:] == ["device", "640 tokens", "1", "$0.01 / 1M tokens", "$0.0000064"]
    assert [[cell.text for cell in cells] for cells in shown["not_charged"].rows] == [["recomputed", "7"]]
    assert {cells[0].text: cells[3].text for cells in shown["usage"].rows}["recomputed"] == "us"


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

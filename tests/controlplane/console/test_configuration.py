"""Run-time settings: changed through the service, and only to what it allows."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from inference.coordination.configuration import Configuration
from inference.coordination.models import ConfigEntry
from tests.controlplane.console.test_entry import address


def test_a_setting_is_changed_for_every_process(staff: Client) -> None:
    assert Configuration()["scheduling.path"] == "auto"
    answer = staff.post(address("configuration"), {"name": "scheduling.path", "value": '"fused"'}, follow=True)
    assert 'value="&quot;fused&quot;" selected' in answer.content.decode()
    assert Configuration()["scheduling.path"] == "fused"
    assert LogEntry.objects.get().change_message == 'scheduling.path = "fused"'


def test_a_boolean_stays_a_boolean_and_the_version_rises(staff: Client) -> None:
    for value in ("true", "false"):
        staff.post(address("configuration"), {"name": "scheduling.paused", "value": value})
        assert Configuration()["scheduling.paused"] is (value == "true")
    assert ConfigEntry.objects.get().version == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheduling.path", '"sideways"'),
        ("scheduling.path", "not json"),
        ("scheduling.path", "[]"),
        ("scheduling.path", "{}"),
        ("scheduling.path", "null"),
        ("no.such.setting", '"auto"'),
        ("", ""),
    ],
)
def test_what_the_service_refuses_is_told_and_changes_nothing(staff: Client, name: str, value: str) -> None:
    answer = staff.post(address("configuration"), {"name": name, "value": value}, follow=True)
    content = answer.content.decode()
    assert "no setting" in content or "is one of" in content or "not one of the options" in content
    assert not ConfigEntry.objects.exists()


def test_a_stranger_changes_nothing(stranger: Client) -> None:
    stranger.post(address("configuration"), {"name": "scheduling.paused", "value": "true"})
    assert not ConfigEntry.objects.exists()

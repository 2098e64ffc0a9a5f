from __future__ import annotations

import re

import pytest
from pytest_django import Settings

from controlplane.embedded.children import programs
from controlplane.embedded.errors import ServerFailed
from controlplane.embedded.outside import broker_check, outside_servers_check, redis_check
from controlplane.embedded.screen import Screen
from controlplane.settings.database import Server

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "url", [f"amqp://me:sesame@{NOBODY}//", f"redis://:sesame@{NOBODY}/0", "redis+socket:///nowhere.sock?virtual_host=1"]
)
def test_a_broker_that_does_not_answer_is_named_without_its_password(url: str) -> None:
    with pytest.raises(ServerFailed, match=r"^BROKER_URL: .* does not answer: .") as refusal:
        broker_check(url)
    assert "sesame" not in str(refusal.value)


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "amqp://me:half/sesame@host//", "redis://:half/sesame@host:1/0"])
def test_a_broker_url_that_is_none_shows_an_example_and_no_part_of_it(url: str) -> None:
    with pytest.raises(ServerFailed, match=r"^BROKER_URL: .*redis://|amqp://") as refusal:
        broker_check(url)
    assert "half" not in str(refusal.value)


def test_a_redis_that_answers_passes_and_a_silent_one_is_named(redis_url: str) -> None:
    redis_check("REDIS_URL", redis_url)
    with pytest.raises(ServerFailed, match=f"^REDIS_URL: redis://{NOBODY}/0 does not answer"):
        redis_check("REDIS_URL", f"redis://:sesame@{NOBODY}/0")


def test_a_database_that_does_not_answer_is_named_before_anything_starts(settings: Settings) -> None:
    settings.DATABASE_IS_EMBEDDED = False
    settings.DATABASE_SERVER = Server.from_url(f"postgres://me:sesame@{NOBODY}/kitchen")
    with pytest.raises(ServerFailed, match=f"^DATABASE_URL: database kitchen on {NOBODY} does not answer: Connection refused$"):
        outside_servers_check()


def test_a_quiet_step_is_one_line_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen().step("Valkey"):
        pass
    assert re.fullmatch(r"  Valkey +0\.0 s\n", capsys.readouterr().out)


def test_a_step_that_says_something_says_its_name_again_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    with screen.step("Waiting for gateway", "ready"):
        screen.say("    not there yet: gateway")
    first, detail, last = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert (first, detail) == ("  Waiting for gateway", "    not there yet: gateway")
    assert re.fullmatch(r"  Waiting for gateway +ready +0\.0 s", last)


def test_workers_do_not_spin_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert _wait_policies() == {"PASSIVE"}
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert _wait_policies() == {"ACTIVE"}


def _wait_policies() -> set[str]:
    return {program.env["OMP_WAIT_POLICY"] for program in programs(8000) if program.slot}

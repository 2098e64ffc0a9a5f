"""Log lines: one event a line, which request it is about, and no secret whatever was put into it."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.settings.env import secret
from controlplane.settings.logs import MESSAGE_CHARACTERS, JsonFormatter, TextFormatter
from inference.telemetry.context import set_about, work_about
from inference.telemetry.redaction import keep_secret, redacted

KEY = "bk-5yN1YZht9Q2gtfYWxUZ82j-NPEm5S36KOQ4zFrv6znQWyJ5gWvMBXTm0i0iZhoutuP1lu7in"
TEXT = "%(levelname)s %(name)s: %(message)s"


class Log:
    def __init__(self, formatter: logging.Formatter) -> None:
        self.written = io.StringIO()
        self.handler = logging.StreamHandler(self.written)
        self.handler.setFormatter(formatter)
        self.logger = logging.getLogger("brigade.test")
        self.logger.addHandler(self.handler)
        self.logger.propagate = False

    @property
    def lines(self) -> list[str]:
        return self.written.getvalue().splitlines()

    @property
    def last(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.lines[-1])
        return found


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    log = Log(TextFormatter(TEXT) if request.param == "text" else JsonFormatter())
    yield log
    log.logger.removeHandler(log.handler)
    log.logger.propagate = True


@pytest.fixture
def json_log() -> Iterator[Log]:
    log = Log(JsonFormatter())
    yield log
    log.logger.removeHandler(log.handler)
    log.logger.propagate = True


@pytest.mark.parametrize(
    ("line", "hidden", "kept"),
    [
        (f"refused {KEY}", KEY[11:], "refused bk-5yN1YZht****"),
        ("refused bk-5yN1YZht9Q2gtf", "9Q2gtf", "bk-5yN1YZht****"),
        ("Authorization: Bearer eyJhbGciOi.abc", "eyJh", "Bearer ****"),
        ("{'Authorization': 'Basic c2VzYW1l'}", "c2Vz", "Basic ****"),
        ("postgresql://me:open-sesame@db:5432/brigade", "sesame", "://****@db:5432/brigade"),
        ("redis://:sesame@cache/0 is away", "sesame", "redis://****@cache/0 is away"),
        ("stripe sk_live_51Habc and whsec_9f", "51Habc", "stripe sk_**** and whsec_****"),
        ("host=db password=sesame user=x", "sesame", "password=**** user=x"),
        ('{"api_key": "sesame", "n": 1}', "sesame", '"api_key": "****", "n": 1'),
        ("SECRET_KEY='sesame'", "sesame", "SECRET_KEY='****'"),
    ],
)
def test_a_secret_is_known_by_its_form(log: Log, line: str, hidden: str, kept: str) -> None:
    log.logger.warning("%s", line)
    log.logger.warning(line.replace("%", "%%"))
    try:
        raise ValueError(line)
    except ValueError:
        log.logger.exception("it failed")
    written = log.written.getvalue()
    assert hidden not in written
    assert written.replace('\\"', '"').count(kept) >= 3


@pytest.mark.parametrize("line", ["3 tokens of max_tokens=64", "GET /v1/models 200", "http://host:4318/v1/traces", "risk-free bk"])
def test_what_is_no_secret_stays(line: str) -> None:
    assert redacted(line) == line


def test_a_secret_of_the_environment_stands_in_no_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    value = secrets.token_hex(12)
    monkeypatch.setenv("SPICE", value)
    assert secret("SPICE") == value
    log.logger.error("the spice is %s", value)
    assert "the spice is ****" in log.written.getvalue()
    assert value not in log.written.getvalue()


def test_a_short_text_is_kept_for_no_secret() -> None:
    keep_secret("salt")
    assert redacted("salted") == "salted"


def test_a_stranger_can_begin_no_line_of_ours(log: Log) -> None:
    log.logger.warning("model %s", "x\n2026-01-01 CRITICAL brigade: all is lost\r\n")
    assert len(log.lines) == 1


def test_a_long_message_is_cut_and_says_so(log: Log) -> None:
    log.logger.warning("x" * 100_000)
    assert len(log.written.getvalue()) < MESSAGE_CHARACTERS + 200
    assert "(100000 characters)" in log.written.getvalue()


def test_a_line_says_which_request_it_is_about_and_only_while_it_is(json_log: Log) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    with work_about(request_id="r1", tenant_id="t1", trace_context=f"00-{trace}-00f067aa0ba902b7-01"):
        json_log.logger.info("within")
        json_log.logger.warning("within")
        within = json_log.last
        with work_about(request_id="r2"):
            set_about(tenant_id="t2")
            json_log.logger.warning("deeper")
            assert {key: json_log.last.get(key) for key in ("request_id", "tenant_id", "trace_id")} == {
                "request_id": "r2",
                "tenant_id": "t2",
                "trace_id": None,
            }
    json_log.logger.warning("after")
    assert (within["request_id"], within["tenant_id"], within["trace_id"], within["level"]) == ("r1", "t1", trace, "WARNING")
    assert "request_id" not in json_log.last

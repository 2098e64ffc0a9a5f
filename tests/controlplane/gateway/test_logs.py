"""What the gateway logs of a call says whose it is, also from the threads that work for it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from controlplane.gateway import threads
from controlplane.settings.logs import JsonFormatter
from inference.coordination.models import Worker
from inference.telemetry.context import about, set_about
from tests.controlplane.conftest import MODEL, Stage, chat

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("brigade").addHandler(handler)
    yield text
    logging.getLogger("brigade").removeHandler(handler)


def test_a_refusal_that_operators_should_know_of_names_request_tenant_and_trace(
    client: OpenAI, stage: Stage, written: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    Worker.objects.all().delete()
    with pytest.raises(openai.InternalServerError) as refusal:
        client.chat.completions.create(
            model=MODEL, messages=chat("dumplings"), extra_headers={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        )
    lines: list[dict[str, Any]] = [json.loads(line) for line in written.getvalue().splitlines()]
    [line] = [line for line in lines if line["message"].startswith("no_workers")]
    assert f"req_{line['request_id'].replace('-', '')}" == refusal.value.response.headers["x-request-id"]
    assert (line["tenant_id"], line["trace_id"]) == (str(stage.acme.organisation.id), TRACE)
    assert "dumplings" not in written.getvalue()


async def test_work_in_a_thread_is_about_its_callers_request() -> None:
    set_about(request_id="r1")
    assert await threads.text.run(about) == {"request_id": "r1"}

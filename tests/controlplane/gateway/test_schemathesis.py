"""Requests made from the published document, and from what it forbids: each answer is as the document says, and none is a 5xx."""

from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.gateway import limits
from controlplane.gateway.fields import NO_CONTROL
from controlplane.gateway.openapi import document
from tests.controlplane.conftest import ScriptedWorker, Stage, open_requests, wait_for

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

api = schemathesis.openapi.from_dict(document())


def _could_be_a_model(name: object) -> bool:
    """What the document forbids stays as it is: it must be refused."""
    return isinstance(name, str) and re.fullmatch(NO_CONTROL, name) is not None and len(name) <= limits.MODEL_CHARACTERS


@pytest.mark.timeout(300)
@api.parametrize()
@settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_as_the_document_says(case: Case[Any], gateway: str, stage: Stage, worker: ScriptedWorker) -> None:
    if isinstance(case.body, dict) and _could_be_a_model(case.body.get("model")):
        case.body["model"] = "tiny"
    answer = case.call(base_url=f"{gateway}/v1", headers={"Authorization": f"Bearer {stage.acme.secret}"}, timeout=60)
    case.validate_response(answer, checks=CHECKS)
    wait_for(lambda: open_requests() == 0, 60)

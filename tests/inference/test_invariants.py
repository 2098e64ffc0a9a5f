"""The checks find what they are for."""

from __future__ import annotations

import dataclasses

import pytest

from inference.contracts import RequestOutcome
from inference.invariants import check
from inference.requests.models import State
from inference.requests.transitions import request_finish
from tests.inference.conftest import ClaimRequest, MakeRequest, register

pytestmark = pytest.mark.django_db

WHOLE = RequestOutcome(reasons=("stop",), computed=4, cached=16, completion=5)


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (WHOLE, []),
        (dataclasses.replace(WHOLE, computed=3), ["usage_prompt"]),
        (dataclasses.replace(WHOLE, computed=0, cached=0), ["usage_prompt"]),
    ],
    ids=["whole", "a part is missing", "all is missing"],
)
def test_the_prompt_of_a_finished_request_is_metered(
    make_request: MakeRequest, claim_request: ClaimRequest, outcome: RequestOutcome, found: list[str]
) -> None:
    register("prefill-0", "prefill")
    request = make_request()
    claim = claim_request(request, "prefill-0")
    assert request_finish(claim.owner, request_id=request.id, state=State.DONE, outcome=outcome)
    assert [violation.invariant for violation in check()] == found

"""The decision to let a request in: its predicted cost is held and its row is queued in one transaction, or neither."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from billing.errors import InsufficientFunds, PriceMissing
from billing.holds.services import hold_place
from billing.pricing.selectors import Tariff, prices_for, quote_at
from controlplane.errors import InsufficientQuota, InvalidValue
from controlplane.idempotency.services import Claim, key_claim
from inference import failpoints
from inference.contracts import Submission
from inference.database import tenant_scope
from inference.submit import submit


def requests_admit(submissions: Sequence[Submission], *, tariff: Tariff, claim: Claim | None = None) -> None:
    """Holds the dearest that each request of one call can become at these prices, and queues it: all of them, or none.

    Raises InsufficientQuota, and IdempotencyInProgress where an equal call was quicker.
    """
    tenant_id, project_id = uuid.UUID(submissions[0].tenant_id), uuid.UUID(submissions[0].project_id)
    try:
        with tenant_scope(tenant_id):
            if claim is not None:
                request_ids = [uuid.UUID(submission.request_id) for submission in submissions]
                key_claim(tenant_id=tenant_id, project_id=project_id, claim=claim, request_ids=request_ids)
            for submission in submissions:
                _admit(submission, tariff)
            failpoints.reach("gateway.admit")
    except InsufficientFunds as error:
        raise InsufficientQuota(f"{error} Check your plan and billing details.") from error
    failpoints.reach("gateway.admitted")


def _admit(submission: Submission, tariff: Tariff) -> None:
    amount_nano_usd = quote_at(
        tariff,
        prompt_tokens=len(submission.prompt_ids),
        max_tokens=submission.sampling.max_tokens,
        choices=submission.sampling.n,
        deadline_s=submission.policy.deadline_s,
    )
    tenant_id, request_id = uuid.UUID(submission.tenant_id), uuid.UUID(submission.request_id)
    hold_place(tenant_id=tenant_id, request_id=request_id, amount_nano_usd=amount_nano_usd)
    submit(submission)


def tariff_now(model: str, service_tier: str) -> Tariff:
    """Raises InvalidValue where the model has no price in this tier: nothing runs at an unknown price."""
    try:
        return prices_for(model=model, service_tier=service_tier, at=datetime.now(UTC))
    except PriceMissing as error:
        raise InvalidValue("This model is not sold in this service tier.", param="service_tier", detail=str(error)) from error

"""The decision to let a request in: its predicted cost is held and its row is queued in one transaction, or neither."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from billing.errors import InsufficientFunds, PriceMissing
from billing.holds.services import hold_place
from billing.pricing.selectors import quote_nano_usd
from controlplane.errors import InsufficientQuota, InvalidValue
from inference.contracts import Submission
from inference.database import tenant_scope
from inference.submit import submit


def request_admit(submission: Submission) -> None:
    """Raises InsufficientQuota, and InvalidValue where the model has no price in this tier: nothing runs at an unknown price."""
    tenant_id = uuid.UUID(submission.tenant_id)
    amount_nano_usd = _predicted_nano_usd(submission)
    try:
        with tenant_scope(tenant_id):
            hold_place(tenant_id=tenant_id, request_id=uuid.UUID(submission.request_id), amount_nano_usd=amount_nano_usd)
            submit(submission)
    except InsufficientFunds as error:
        raise InsufficientQuota(f"{error} Check your plan and billing details.") from error


def _predicted_nano_usd(submission: Submission) -> int:
    """The dearest that the request can become: no cached prefix, all of max_tokens, its KV held until the deadline."""
    try:
        return quote_nano_usd(
            model=submission.model,
            service_tier=submission.policy.tier,
            prompt_tokens=len(submission.prompt_ids),
            max_tokens=submission.sampling.max_tokens,
            at=datetime.now(UTC),
            deadline_s=submission.policy.deadline_s,
        )
    except PriceMissing as error:
        raise InvalidValue("This model is not sold in this service tier.", param="service_tier", detail=str(error)) from error

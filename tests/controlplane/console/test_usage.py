"""Usage by day: sums of the rated days, filtered as asked."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from billing.metering.models import UsageDay
from controlplane.console.usage import UsageQuery, usage_page
from tests.controlplane.console.rows import MODEL, Tenant
from tests.controlplane.console.test_entry import address

TODAY = date(2026, 5, 31)


def day_make(tenant: Tenant, *, ago: int, tokens: int, nano_usd: int, meter: str = "decode", model: str = MODEL) -> None:
    UsageDay.objects.create(
        tenant_id=tenant.id,
        day=TODAY - timedelta(days=ago),
        project_id=tenant.project.id,
        model=model,
        service_tier="default",
        meter=meter,
        unit="token",
        quantity=tokens,
        amount_nano_usd=nano_usd,
    )


def page(asked: str = "") -> dict[str, Any]:
    return usage_page(UsageQuery.of(QueryDict(asked)), TODAY)


def total(shown: dict[str, Any]) -> str:
    text: str = shown["facts"][0].value.text
    return text


def test_days_are_summed_by_tenant_model_and_meter(acme: Tenant, rival: Tenant) -> None:
    day_make(acme, ago=0, tokens=100, nano_usd=1_000_000_000)
    day_make(acme, ago=0, tokens=7, nano_usd=5, meter="prefill_computed")
    day_make(rival, ago=1, tokens=30, nano_usd=250_000_000)
    shown = page()
    assert total(shown) == "$1.250000005"
    cells = [[cell.text for cell in row] for row in shown["days"].rows]
    assert cells[0] == ["2026-05-31", "Acme", MODEL, "completion tokens", "100 tokens", "$1.000000000"]
    assert cells[-1] == ["2026-05-30", "Rival", MODEL, "completion tokens", "30 tokens", "$0.250000000"]


@pytest.mark.parametrize(
    ("asked", "expected"), [("days=7", "$1.00"), ("days=30", "$3.00"), ("days=90", "$7.00"), ("days=9999", "$3.00")]
)
def test_the_period_is_one_of_three(acme: Tenant, asked: str, expected: str) -> None:
    for ago, nano_usd in ((6, 1_000_000_000), (7, 2_000_000_000), (89, 4_000_000_000), (90, 8_000_000_000)):
        day_make(acme, ago=ago, tokens=1, nano_usd=nano_usd)
    assert total(page(asked)) == expected


def test_tenant_and_model_filter(acme: Tenant, rival: Tenant) -> None:
    day_make(acme, ago=0, tokens=1, nano_usd=1_000_000_000)
    day_make(rival, ago=0, tokens=1, nano_usd=2_000_000_000, model="another")
    assert total(page(f"tenant={rival.id}")) == "$2.00"
    assert total(page(f"model={MODEL}")) == "$1.00"
    assert total(page(f"model={MODEL}&tenant={rival.id}")) == "$0.00"
    assert total(page("tenant=nobody")) == "$3.00"


def test_the_chart_has_a_bar_a_day_and_the_highest_is_full(acme: Tenant) -> None:
    day_make(acme, ago=0, tokens=1, nano_usd=1_000_000_000)
    day_make(acme, ago=6, tokens=1, nano_usd=4_000_000_000)
    chart = page("days=7")["chart"]
    assert [bar.height for bar in chart.bars] == ["100.00", *["0.00"] * 5, "25.00"]
    assert chart.bars[0].title == "2026-05-25: $4.00"
    assert (chart.first, chart.last, chart.most) == ("2026-05-25", "2026-05-31", "$4.0000")


def test_the_page_says_when_it_shows_a_part(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.console.usage.ROWS", 2)
    for ago in range(3):
        day_make(acme, ago=ago, tokens=1, nano_usd=1)
    days = page()["days"]
    assert (len(days.rows), days.note) == (2, "Only the latest 2 rows are shown.")


def test_a_full_table_costs_no_more_queries(staff: Client, acme: Tenant, rival: Tenant, django_assert_num_queries: Any) -> None:
    today = timezone.now().date()
    ago = (TODAY - today).days
    for index in range(50):
        day_make(acme if index % 2 else rival, ago=ago + index % 25, tokens=1, nano_usd=1, model=f"m{index}")
    with django_assert_num_queries(7):  # session, person, and five of the page
        content = staff.get(address("usage")).content.decode()
    assert "m49" in content

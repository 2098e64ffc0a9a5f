"""Dashboard and alert rules ask only for what the processes export, in well-formed PromQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from controlplane.fleet.facts import Facts
from controlplane.fleet.processes_page import Processes

MONITORING = Path(__file__).parents[1] / "infra" / "monitoring"
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
RULES: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = {f"panel {panel['title']}": target["expr"] for panel in PANELS for target in panel["targets"]}
EXPRESSIONS = [*QUERIES.items(), *((rule["alert"], rule["expr"]) for rule in RULES)]

for name in (
    "billing.metering.metrics",
    "controlplane.gateway.metrics",
    "inference.coordination.metrics",
    "inference.scheduling.metrics",
    "inference.workers.consumer",
    "inference.workers.metrics",
):
    import_module(name)

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
FUNCTIONS = {"sum", "min", "max", "count", "rate", "increase", "histogram_quantile", "vector"}
WORDS = {"by", "on", "group_left", "or"}
GIVEN = {"up": {"job", "instance"}, "process_resident_memory_bytes": set(), "process_cpu_seconds_total": set()}  # Prometheus's own
EVERYWHERE = {"process", "job", "instance", "le"}
DURATION = re.compile(r"\d+[smh]")


@pytest.fixture
def exported(db: None) -> dict[str, set[str]]:
    """Labels by the names of families, as the processes would export them."""
    facts = Facts()
    facts.read()
    found = {family.name: {label for one in family.samples for label in one.labels} for family in facts.collect()}
    found |= {family.name: {"process"} for family in Processes(dict).collect()}
    for collector in list(REGISTRY._collector_to_names):
        for family in collector.describe() if hasattr(collector, "describe") else []:
            found.setdefault(family.name, set()).update(getattr(collector, "_labelnames", getattr(collector, "_labels", ())))
    labels = {
        "brigade_requests": {"model", "tier", "state"},
        "brigade_queue_age_seconds": {"model", "tier"},
        "brigade_workers": {"model", "role"},
    }
    labels |= {"brigade_unrated_requests": {"reason"}, "brigade_heartbeat_age_seconds": {"name"}}  # of which there may be none
    return {name: found[name] | labels.get(name, set()) for name in found if name.startswith("brigade_")}


@pytest.fixture
def samples(exported: dict[str, set[str]]) -> dict[str, set[str]]:
    """Labels by the names of samples, which queries ask for."""
    types = {family.name: family.type for collector in list(REGISTRY._collector_to_names) for family in _described(collector)}
    return GIVEN | {f"{name}{suffix}": labels for name, labels in exported.items() for suffix in SUFFIXES[types.get(name, "gauge")]}


def _described(collector: Any) -> Iterable[Any]:
    return collector.describe() if hasattr(collector, "describe") else ()


def bare(expression: str) -> str:
    """Without texts, ranges and Grafana's variables."""
    return re.sub(r"\[[^\]]*\]", "", re.sub(r'"[^"]*"', '""', expression))


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """(metric, labels of its matchers)"""
    without_groups = re.sub(r"\b(by|on|group_left) \([^)]*\)", "", bare(expression))
    found = re.findall(r"([a-z_][a-z0-9_]*)(\{[^}]*\})?", re.sub(r"\b\d[\d.e]*\b", "", without_groups))
    outside = [(name, matchers) for name, matchers in found if name not in FUNCTIONS | WORDS]
    inside = {label for _, matchers in found for label in re.findall(r"([a-z_]+)\s*[=!]", matchers)}
    return [(name, set(re.findall(r"([a-z_]+)\s*[=!]", matchers))) for name, matchers in outside if name not in inside or matchers]


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_a_query_asks_for_what_is_exported_by_labels_that_it_has(where: str, expression: str, samples: dict[str, set[str]]) -> None:
    asked = selectors(expression)
    assert asked, where
    assert {name for name, _ in asked} <= set(samples)
    for name, matched in asked:
        assert matched <= samples[name] | EVERYWHERE, (where, name)
    groups = {label.strip() for inner in re.findall(r"\bby \(([^)]*)\)", expression) for label in inner.split(",")}
    known = set().union(*(samples[name] for name, _ in asked))
    assert groups <= known | EVERYWHERE, where


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_a_query_is_well_formed(where: str, expression: str) -> None:
    depth: list[str] = []
    for sign in bare(expression):
        if sign in "({":
            depth.append({"(": ")", "{": "}"}[sign])
        elif sign in ")}":
            assert depth.pop() == sign, where
    assert depth == []
    for counter in re.findall(r"\b(\w+_(?:total|bucket))\b(\{[^}]*\})?(\[)?", expression):
        assert counter[2] == "[", f"{where}: {counter[0]} without rate or increase"
    assert not re.findall(r"\b(?:rate|increase)\((?!\w+(?:_total|_bucket|_sum|_count)\b)", expression), where
    for selector in re.findall(r"histogram_quantile\((.*)", expression, re.DOTALL):
        assert re.match(r"0\.\d+, sum by \(le\b", selector), where


def test_every_metric_is_in_the_readme_and_nothing_else_is(exported: dict[str, set[str]]) -> None:
    told = dict(re.findall(r"^\| `(brigade_\w+)` \|([^|]*)\|", (MONITORING / "README.md").read_text(), re.MULTILINE))
    suffix = {
        family.name: "_total"
        for one in list(REGISTRY._collector_to_names)
        for family in _described(one)
        if family.type == "counter"
    }
    assert set(told) == {f"{name}{suffix.get(name, '')}" for name in exported}
    labels = {f"{name}{suffix.get(name, '')}": ", ".join(sorted(found)) for name, found in exported.items()}
    assert {name: ", ".join(sorted(re.findall(r"\w+", text))) for name, text in told.items()} == labels


def test_alerts_are_what_prometheus_takes() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 10
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert DURATION.fullmatch(rule.get("for", "1s"))
        assert rule["labels"]["severity"] in ("page", "warn")
        assert re.search(r"[<>=]=?\s*[\d.]+\s*$", rule["expr"]), rule["alert"]
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
def test_an_alerts_text_names_labels_that_its_query_leaves(rule: dict[str, Any]) -> None:
    text = " ".join(rule["annotations"].values())
    named = set(re.findall(r"\$labels\.(\w+)", text))
    left = {label.strip() for inner in re.findall(r"\bby \(([^)]*)\)", rule["expr"]) for label in inner.split(",")}
    plain = EVERYWHERE if " by " not in rule["expr"] else set()
    assert named <= left | plain
    assert len(re.findall(r"{{.*?}}", text)) == text.count("{{") == text.count("}}")


def test_the_scrape_file_names_the_rules_and_a_page() -> None:
    scrape = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    assert [(MONITORING / name).is_file() for name in scrape["rule_files"]] == [True]
    assert set(scrape["global"]) == {"scrape_interval", "evaluation_interval"}
    assert all(DURATION.fullmatch(value) for value in scrape["global"].values())
    assert [job["job_name"] for job in scrape["scrape_configs"]] == ["brigade"]
    assert scrape["scrape_configs"][0]["static_configs"][0]["targets"]


def test_the_dashboard_can_be_imported() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating"} <= set(DASHBOARD)
    assert "id" not in DASHBOARD  # Grafana gives one
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(PANELS)))
    assert used <= variables
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in panel["targets"]] == [chr(65 + number) for number in range(len(panel["targets"]))]


def test_no_panel_covers_another() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above

"""The operators' page over real sockets."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

from controlplane.fleet.processes_page import page_of
from inference.telemetry.address import Address
from inference.telemetry.page import PageUnavailable, Render, page_serve


@pytest.fixture
def render() -> Render:
    registry = CollectorRegistry()
    Counter("eggs", "Broken.", registry=registry).inc(12)
    return lambda: generate_latest(registry)


def get(address: Address, path: str = "/metrics") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_a_page_is_at_its_path_and_nothing_is_elsewhere(render: Render) -> None:
    address = page_serve(Address(port=0), render)
    status, page = get(address)
    assert (status, "eggs_total 12.0" in page, "eggs_created" in page) == (200, True, False)
    assert get(address, "/") == get(address, "/metrics/x") == (404, "")


def test_an_address_in_use_is_named(render: Render) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address(port=other.getsockname()[1])
        with pytest.raises(PageUnavailable, match=f"^{taken} cannot be used: Address already in use"):
            page_serve(taken, render)


def test_a_socket_that_a_dead_process_left_is_replaced_and_a_file_is_not(tmp_path: Path, render: Render) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    page_serve(Address(path=str(path)), render)
    assert "eggs_total 12.0" in (page_of(path) or "")
    precious = tmp_path / "precious"
    precious.write_text("words")
    with pytest.raises(PageUnavailable, match="precious cannot be used"):
        page_serve(Address(path=str(precious)), render)
    assert precious.read_text() == "words"


def test_nobody_at_a_socket_is_no_page(tmp_path: Path) -> None:
    assert page_of(tmp_path / "nobody.sock") is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", Address("127.0.0.1", 9464)),
        (":9464", Address("127.0.0.1", 9464)),
        ("0.0.0.0:1", Address("0.0.0.0", 1)),
        ("[::1]:9464", Address("::1", 9464)),
        ("unix:/run/brigade.sock", Address(path="/run/brigade.sock")),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize("text", ["here", "127.0.0.1", "host:", "host:70000", "host:-1", "unix:here.sock", f"unix:/{'a' * 120}"])
def test_an_address_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=text[:20].replace("[", r"\[")):
        Address.parse(text)

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from controlplane.embedded.paths import BASE, DataFolder, data_folder
from controlplane.settings import env
from controlplane.settings.database import Server

READ_BY_SETTINGS = (
    "DATABASE_URL",
    "REDIS_URL",
    "BROKER_URL",
    "PORT",
    "BRIGADE_DATABASE_ROLE",
    "BRIGADE_SECRET_KEY",
    "BRIGADE_PROCESS",
)


def manage(data: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name.removesuffix("_FILE") not in READ_BY_SETTINGS}
    argv = [sys.executable, str(BASE / "manage.py"), *arguments]
    return subprocess.run(argv, env=kept | {"BRIGADE_DATA": str(data)} | more, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PORT", "abc", "PORT: 'abc' is not a whole number"),
        ("DATABASE_URL", "postgres://me:half/sesame@host/brigade", "DATABASE_URL: host and port do not parse"),
        ("BRIGADE_DATA", "/dev/null/data", "BRIGADE_DATA: "),
        ("BRIGADE_METRICS", "here", "BRIGADE_METRICS: 'here' is neither PORT, HOST:PORT nor unix:/PATH"),
        ("BRIGADE_LOG_FORMAT", "xml", "BRIGADE_LOG_FORMAT: 'xml' is none of text, json"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path, name: str, value: str, said: str) -> None:
    ended = manage(tmp_path, "serve", **{name: value})
    assert ended.returncode == 2
    assert ended.stderr.startswith(said)
    assert ended.stderr.count("\n") == 1
    assert "half" not in ended.stderr


@pytest.mark.parametrize("command", [("dispatcher",), ("control",), ("worker", "--slot", "w", "--roles", "prefill")])
def test_a_process_whose_metrics_cannot_be_shown_does_not_start(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        ended = manage(tmp_path, *command, BRIGADE_METRICS=place)
    assert (ended.returncode, ended.stderr) == (2, f"BRIGADE_METRICS: {place} cannot be used: Address already in use\n")


@pytest.mark.parametrize(
    ("raw", "said"),
    [("x", "SIZE: 'x' is not a whole number"), ("3", "SIZE: 3 is less than 4"), ("10", "SIZE: 10 is more than 9")],
)
def test_a_number_that_cannot_be_says_why(monkeypatch: pytest.MonkeyPatch, raw: str, said: str) -> None:
    monkeypatch.setenv("SIZE", raw)
    with pytest.raises(ImproperlyConfigured, match=f"^{said}$"):
        env.integer("SIZE", 5, least=4, most=9)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("red,", "'' is no folder's name"),
        ("../red", "'../red' is no folder's name"),
        (".red", "'.red' is no folder's name"),
        ("red, blue,red", "a name stands twice"),
    ],
)
def test_a_list_of_models_that_cannot_be_says_why(monkeypatch: pytest.MonkeyPatch, raw: str, said: str) -> None:
    monkeypatch.setenv("MODELS", "red, blue")
    assert env.names("MODELS", ()) == ("red", "blue")
    monkeypatch.setenv("MODELS", raw)
    with pytest.raises(ImproperlyConfigured, match=f"^MODELS: {said}$"):
        env.names("MODELS", ())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("notaurl", "not a URL"),
        ("mysql://host/brigade", "'mysql' is not postgresql"),
        ("postgresql://host", "names no database"),
        ("postgresql://host:port/brigade", "do not parse"),
    ],
)
def test_a_wrong_database_url_says_why(url: str, said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"DATABASE_URL: .*{said}"):
        Server.from_url(url)


@pytest.mark.parametrize("command", ["demo", "metrics"])
def test_where_no_server_runs_a_command_says_so_in_one_line(tmp_path: Path, command: str) -> None:
    tmp_path.joinpath("demo.json").write_text('{"api_key": "bk-sesame", "console_password": "sesame"}')
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and never listens
        ended = manage(tmp_path, command, PORT=str(closed.getsockname()[1]))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "cannot be reached (" in ended.stderr
    assert "Start `make serve`" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "sesame" not in ended.stderr


def test_a_model_that_is_not_there_is_named_with_what_names_it_and_what_adds_it(tmp_path: Path) -> None:
    ended = manage(tmp_path, "serve", BRIGADE_MODEL="leftover", PORT="0")
    assert ended.returncode == 1
    assert "BRIGADE_MODEL names 'leftover'" in ended.stderr
    assert "manage.py model_add" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", ["pools", "check_invariants", "metrics"])
def test_an_operator_learns_that_the_database_cannot_be_reached_and_nothing_is_made(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "nothing"
    ended = manage(folder, command)
    assert ended.returncode == 2
    assert f"database brigade on {DataFolder(folder).sockets} cannot be reached" in ended.stderr
    assert "make serve" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not folder.exists()


def test_what_cannot_be_reached_is_named_without_its_password(tmp_path: Path) -> None:
    tmp_path.joinpath("secret.key").write_text("k" * 64)
    ended = manage(tmp_path, "pools", DATABASE_URL="postgres://me:sesame@127.0.0.1:1/kitchen")
    assert ended.returncode == 2
    assert "database kitchen on 127.0.0.1:1 cannot be reached (Connection refused)" in ended.stderr
    assert "sesame" not in ended.stderr


def test_role_passwords_never_derive_from_a_key_that_ends_with_the_process(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    url = "postgres://me:sesame@127.0.0.1:1/kitchen"
    refused = manage(folder, "pools", DATABASE_URL=url)
    assert refused.returncode == 2
    assert "BRIGADE_SECRET_KEY: not set" in refused.stderr
    manage(folder, "database_setup", DATABASE_URL=url)
    assert len(folder.joinpath("secret.key").read_text()) == 64
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_data_folder_keeps_one_key_and_a_missing_one_is_not_made(tmp_path: Path) -> None:
    there, missing = DataFolder(tmp_path), DataFolder(tmp_path / "missing")
    assert there.secret_key() == there.secret_key()
    assert missing.secret_key() != missing.secret_key()
    assert not missing.root.exists()


def test_the_data_folder_is_beside_manage_py_unless_a_name_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BRIGADE_DATA", raising=False)
    assert data_folder().root == BASE / ".data"
    monkeypatch.setenv("BRIGADE_DATA", "mine")
    assert data_folder().root == tmp_path / "mine"

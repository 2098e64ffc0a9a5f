"""A failpoint acts at the pass it was told to, once over all processes, and never where test hooks are off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from inference.failpoints import VARIABLE, FailpointError, Failpoints, arm, mark, reach


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "failpoints.json"


def plan(file: Path, run: str, **point: object) -> Failpoints:
    file.write_text(json.dumps({"run": run, "points": [{"point": "decode.step", **point}]}))
    return Failpoints(file)


def test_it_acts_at_the_nth_pass_and_leaves_a_mark(file: Path) -> None:
    points = plan(file, "a", action="drop", nth=3)
    assert [points.reach("decode.step") for _ in range(5)] == ["", "", "drop", "", ""]
    assert mark(file, "a", 0).exists()


def test_another_point_is_another_count(file: Path) -> None:
    points = plan(file, "a", action="drop", nth=2)
    assert points.reach("prefill.claim") == points.reach("decode.step") == ""


def test_all_processes_together_act_so_many_times(file: Path) -> None:
    points = plan(file, "a", action="duplicate", times=2)
    other = Failpoints(file)
    assert [points.reach("decode.step"), other.reach("decode.step"), points.reach("decode.step")] == ["duplicate", "duplicate", ""]


def test_a_new_run_is_read_while_the_process_lives(file: Path) -> None:
    points = plan(file, "a", action="drop")
    assert points.reach("decode.step") == "drop"
    plan(file, "b", action="raise")
    with pytest.raises(FailpointError):
        points.reach("decode.step")


def test_a_point_that_does_not_exist_is_refused(file: Path) -> None:
    file.write_text(json.dumps({"run": "a", "points": [{"point": "decode.stpe", "action": "kill"}]}))
    with pytest.raises(ValueError, match=r"decode\.stpe"):
        Failpoints(file).reach("decode.step")


def test_kill_ends_the_process_at_once(file: Path) -> None:
    plan(file, "a", action="kill")
    code = "import sys, pathlib, inference.failpoints as f; f.Failpoints(pathlib.Path(sys.argv[1])).reach('decode.step')"
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == -9


def test_without_test_hooks_the_start_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(RuntimeError, match="test hooks"):
        arm(allowed=False)


def test_nothing_is_armed_by_default() -> None:
    assert reach("decode.step") == ""

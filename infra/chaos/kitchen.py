"""A running copy under test: streams that know what they must say, failpoints, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.contracts import SamplingParams
from inference.engine.loading import load_model
from inference.engine.reference import reference
from inference.failpoints import VARIABLE, mark
from inference.text import ChatMessage, open_text
from inference.text.model_files import ensure_oracle
from infra.bench.support.client import CallFailed, Stream, chat, free_port, get
from infra.chaos.scenarios import Scenario

ROOT = Path(__file__).resolve().parents[2]
STOPPED_S = 6.0  # longer than a lease, so that a stopped process comes back as a zombie
PATIENCE_S = 60.0
LATE_S = 5.0
TOKENS = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """`lost` and `wrong` count streams; `resumed_s` is the longest silence that a stream saw."""

    scenario: str
    fired: bool
    streams: int
    lost: int
    wrong: int
    resumed_s: float
    violations: list[dict[str, Any]]
    errors: list[str]

    @property
    def good(self) -> bool:
        return self.fired and not self.lost and not self.wrong and not self.violations


class Kitchen:
    """`manage.py serve` on a data folder of its own, with failpoints."""

    def __init__(self, folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.failpoints = folder / "failpoints.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._arm("none", [])
        hooks = {"BRIGADE_MODEL": "tiny", "BRIGADE_TEST_HOOKS": "1", VARIABLE: str(self.failpoints)}
        self.env = {**os.environ, "BRIGADE_DATA": str(folder), "PORT": str(free_port()), **hooks, **(env or {})}
        self._manage = [sys.executable, str(ROOT / "manage.py")]
        model = ensure_oracle("tiny", folder / "models")
        self._model, self._text = load_model(model), open_text(model)
        self._expected: dict[str, str] = {}

    def start(self) -> None:
        with (self.folder / "serve.log").open("wb") as log:
            self.process = subprocess.Popen([*self._manage, "serve"], env=self.env, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        while "Ctrl-C stops" not in (self.folder / "serve.log").read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((self.folder / "serve.log").read_text())
            time.sleep(0.1)
        known = json.loads(self.manage("demo_credentials", "--json").stdout)
        self.base_url, self.api_key = known["base_url"], known["api_key"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def manage(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*self._manage, *words], env=self.env, cwd=ROOT, capture_output=True, text=True, check=False)

    def run(self, scenario: Scenario, streams: int) -> Outcome:
        """Streams together, with the failpoint armed; then waits until all is at rest and looks."""
        self._wait_ready()
        point = {"point": scenario.point, "action": scenario.action, "nth": scenario.nth, "seconds": 2.0}
        self._arm(scenario.name, [point])
        prompts = [f"{scenario.name} {number} {'spoon ' * (number % 5)}" for number in range(streams)]
        answers = asyncio.run(self._serve(prompts, scenario))
        self._wait_fired(scenario)
        self._arm("none", [])
        asyncio.run(self._continue_all())
        found = [answer for answer in answers if isinstance(answer, Stream)]
        wrong = sum(
            answer.text != self._right(prompt)
            for prompt, answer in zip(prompts, answers, strict=True)
            if isinstance(answer, Stream)
        )
        silence = max((gap for answer in found for gap in answer.gaps_ms), default=0.0) / 1000
        errors = sorted({f"{type(answer).__name__}: {answer}" for answer in answers if not isinstance(answer, Stream)})
        fired = mark(self.failpoints, scenario.name, 0).exists()
        return Outcome(scenario.name, fired, streams, streams - len(found), wrong, round(silence, 2), self._violations(), errors)

    def _arm(self, run: str, points: list[dict[str, Any]]) -> None:
        fresh = self.failpoints.with_suffix(".new")
        fresh.write_text(json.dumps({"run": run, "points": points}))
        fresh.replace(self.failpoints)

    async def _serve(self, prompts: list[str], scenario: Scenario) -> list[Stream | Exception]:
        continuing = asyncio.create_task(self._continue_stopped())
        try:
            return await asyncio.gather(*(self._one(prompt, scenario) for prompt in prompts))
        finally:
            continuing.cancel()

    async def _one(self, prompt: str, scenario: Scenario) -> Stream | Exception:
        """Where the gateway itself dies its clients lose their connections and ask again, as clients do."""
        body = {"model": "tiny", "temperature": 0, "max_tokens": TOKENS, "messages": [{"role": "user", "content": prompt}]}
        error: Exception = TimeoutError()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                return await asyncio.wait_for(chat(self.base_url, self.api_key, body), PATIENCE_S)
            except (OSError, CallFailed, TimeoutError) as failure:
                error = failure
                if scenario.spares_clients:
                    break
            await asyncio.sleep(0.3)
        return error

    def _wait_fired(self, scenario: Scenario) -> None:
        """Ingest comes after the streams have ended."""
        deadline = time.monotonic() + LATE_S
        while not mark(self.failpoints, scenario.name, 0).exists() and time.monotonic() < deadline:
            time.sleep(0.1)

    async def _continue_stopped(self) -> None:
        """Wakes processes that stopped themselves, after their leases are over."""
        while True:
            await asyncio.sleep(0.2)
            await self._continue_all()

    async def _continue_all(self) -> None:
        for pid in self._stopped():
            await asyncio.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)

    def _stopped(self) -> list[int]:
        marker = f"BRIGADE_DATA={self.folder}".encode()
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/stat") if _is_stopped(path, marker)]

    def _right(self, prompt: str) -> str:
        if prompt not in self._expected:
            ids = self._text.render_chat([ChatMessage("user", prompt)])
            out = reference(self._model, ids, SamplingParams(max_tokens=TOKENS, temperature=0.0), eos_ids=self._text.eos_ids)
            self._expected[prompt] = self._text.decode([token for token in out if token not in self._text.eos_ids])
        return self._expected[prompt]

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                get(self.base_url.removesuffix("/v1"), "", "/readyz")
                return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the copy under test does not become ready again")

    def _violations(self) -> list[dict[str, Any]]:
        """Once everything is at rest nothing may be violated; until then a request may still be on its way to its end."""
        deadline = time.monotonic() + 30
        while True:
            answer = self.manage("check_invariants", "--json")
            violations: list[dict[str, Any]] = (
                json.loads(answer.stdout)["violations"] if answer.stdout else [{"stderr": answer.stderr}]
            )
            if not violations or time.monotonic() > deadline:
                return violations
            time.sleep(1)


def _is_stopped(stat: Path, marker: bytes) -> bool:
    try:
        stopped = stat.read_text().rpartition(")")[2].split()[0] == "T"
        return stopped and marker in (stat.parent / "environ").read_bytes().split(b"\0")
    except OSError:
        return False

"""Through the API: TTFT, ITL and tokens/s at concurrency 1, 8 and 32; where the TTFT outside the engine goes; split beside fused.

Runs against `--base-url` with `--api-key`, or starts a server of its own in a temporary folder.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.bench.support.client import Stream, chat, free_port, get
from infra.bench.support.report import Row, arguments, paired, publish, row

ROOT = Path(__file__).resolve().parents[2]
CONCURRENCY = (1, 8, 32)
CALLS, CALLS_AFTER_PAUSES, PAUSE_S = 40, 15, 1.2
LAPS = ("key", "body", "catalogue", "render", "limits")  # of the gateway, before the transaction
_WORDS = (
    "kitchen",
    "sauce",
    "knife",
    "onion",
    "stock",
    "flame",
    "butter",
    "pan",
    "oven",
    "salt",
    "recipe",
    "station",
    "order",
    "plate",
)


@dataclass(frozen=True, slots=True)
class Target:
    base_url: str
    api_key: str
    model: str
    manage: tuple[str, ...]  # command line of manage.py against this server
    env: dict[str, str]

    @property
    def port(self) -> str:
        return self.env["PORT"]

    def command(self, *words: str) -> str:
        return subprocess.run([*self.manage, *words], env=self.env, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    def use_path(self, path: str) -> None:
        self.command("config_set", "scheduling.path", json.dumps(path))
        time.sleep(1.2)  # the dispatcher reads its configuration once a second


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--base-url")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--pairs", type=int, default=10, help="split and fused in turn, so often")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    with target(options.base_url, options.api_key) as server:
        rows = asyncio.run(measure(server, options.pairs, options.tokens))
    publish(rows, options.json)


async def measure(server: Target, pairs: int, tokens: int) -> list[Row]:
    await chat(server.base_url, server.api_key, body(server.model, tokens))  # warms what is made lazily
    rows = await outside_the_engine(server)
    rows += await split_beside_fused(server, pairs, tokens)
    for concurrency in CONCURRENCY:
        rows += await at_concurrency(server, concurrency, tokens)
    return rows


async def split_beside_fused(server: Target, pairs: int, tokens: int) -> list[Row]:
    """Concurrency 1. Both paths in turn, each on prompts of its own."""
    streams: dict[str, list[Stream]] = {"split": [], "fused": []}
    for path in itertools.islice(itertools.cycle(streams), 2 * pairs):
        server.use_path(path)
        streams[path].append(await chat(server.base_url, server.api_key, body(server.model, tokens)))
    server.use_path("auto")
    ttft = {path: [stream.ttft_ms for stream in streams[path]] for path in streams}
    gaps = {path: [statistics.median(stream.gaps_ms) for stream in streams[path]] for path in streams}
    rows = [paired("serve.path.ttft", "TTFT, split beside fused", ttft["split"], "fused", ttft["fused"], "ms", "lower")]
    rows.append(paired("serve.path.itl", "ITL p50, split beside fused", gaps["split"], "fused", gaps["fused"], "ms", "lower"))
    return rows


async def outside_the_engine(server: Target) -> list[Row]:
    """Split calls one behind the other, part by part; and the whole where each comes a second after the last."""
    server.use_path("split")
    parts = await _outside_of_calls(server, CALLS, pause_s=0.0)
    late = await _outside_of_calls(server, CALLS_AFTER_PAUSES, pause_s=PAUSE_S)
    server.use_path("auto")
    rows = [row(f"serve.outside.{name}", f"split, {name}", [part[name] for part in parts], "ms", "lower") for name in parts[0]]
    rows.append(row("serve.outside", "split, TTFT outside the engine", [sum(part.values()) for part in parts], "ms", "lower"))
    rows.append(row("serve.outside.late", "- after a pause of a second", [sum(part.values()) for part in late], "ms", "lower"))
    return rows


async def _outside_of_calls(server: Target, calls: int, pause_s: float) -> list[dict[str, float]]:
    found = []
    for _ in range(calls):
        await asyncio.sleep(pause_s)
        stream = await chat(server.base_url, server.api_key, body(server.model, 8))
        await asyncio.sleep(0.1)  # the receipt is written
        receipt = get(server.base_url, server.api_key, f"/requests/{stream.request_id}")
        assert receipt["path"] == "split", "this call was to run split"
        found.append(outside(stream, receipt))
    return found


def outside(stream: Stream, receipt: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of the TTFT that the engine did not spend, by part; client and server share the machine's clock."""
    created = datetime.fromisoformat(receipt["created_at"]).timestamp()
    timing, laps = receipt["timing_ms"], {name: stream.server_timing_ms.get(name, 0.0) for name in LAPS}
    return {
        "HTTP, framework, and the transaction up to the row": 1000 * (created - stream.sent_at) - sum(laps.values()),
        **{f"gateway: {name}": ms for name, ms in laps.items()},
        "commit, notify, offer": timing["offer"],
        "broker, claim": timing["queue"] - timing["offer"],
        "hand to the engine": timing["ttft"] - timing["queue"] - timing["prefill"],
        "publish, stream, SSE": 1000 * (stream.chunk_times[0] - created) - timing["ttft"],
    }


async def at_concurrency(server: Target, concurrency: int, tokens: int) -> list[Row]:
    """Three rounds of `concurrency` streams that start together."""
    rounds = [await one_round(server, concurrency, tokens) for _ in range(3)]
    ttft = [statistics.median(stream.ttft_ms for stream in streams) for streams, _ in rounds]
    gaps = [statistics.median(gap for stream in streams for gap in stream.gaps_ms) for streams, _ in rounds]
    speed = [sum(stream.usage["completion_tokens"] for stream in streams) / seconds for streams, seconds in rounds]
    name = f"{concurrency} stream{'s' if concurrency > 1 else ''}"
    return [
        row(f"serve.{concurrency}.ttft", f"{name}, TTFT p50", ttft, "ms", "lower"),
        row(f"serve.{concurrency}.itl", f"{name}, ITL p50", gaps, "ms", "lower"),
        row(f"serve.{concurrency}.speed", f"{name}, output", speed, "tokens/s", "higher"),
    ]


async def one_round(server: Target, concurrency: int, tokens: int) -> tuple[Sequence[Stream], float]:
    began = time.monotonic()
    calls = [chat(server.base_url, server.api_key, body(server.model, tokens)) for _ in range(concurrency)]
    streams = await asyncio.gather(*calls)
    return streams, time.monotonic() - began


def body(model: str, tokens: int) -> dict[str, Any]:
    """A prompt that shares little with others; greedy, so that the work is the same for every run."""
    words = " ".join(random.choices(_WORDS, k=24))
    return {
        "model": model,
        "temperature": 0,
        "max_tokens": tokens,
        "messages": [{"role": "user", "content": f"{words}. Tell a long story."}],
    }


@contextmanager
def target(base_url: str | None = None, api_key: str = "", more: Mapping[str, str] | None = None) -> Iterator[Target]:
    """A server that runs already, or one of our own, whose environment has `more`.

    Only with test hooks the gateway tells its laps.
    """
    manage = (sys.executable, str(ROOT / "manage.py"))
    if base_url:
        offered = get(base_url, api_key, "/models")["data"][0]["id"]
        yield Target(base_url, api_key, offered, manage, dict(os.environ))
        return
    with tempfile.TemporaryDirectory(prefix="brigade-bench-") as folder:
        models = Path(folder) / "models"
        if (ROOT / ".data" / "models").is_dir():
            models.symlink_to(ROOT / ".data" / "models")
        env = {**os.environ, "BRIGADE_DATA": folder, "PORT": str(free_port()), "BRIGADE_TEST_HOOKS": "1", **(more or {})}
        server = subprocess.Popen([*manage, "serve"], env=env, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            yield _started(manage, env, server)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def _started(manage: tuple[str, ...], env: dict[str, str], server: subprocess.Popen[bytes]) -> Target:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit("the server did not start; run `make serve` to see why")
        answer = subprocess.run([*manage, "demo_credentials", "--json"], env=env, cwd=ROOT, capture_output=True, text=True)
        if answer.returncode == 0:
            known = json.loads(answer.stdout)
            try:
                get(known["base_url"].removesuffix("/v1"), "", "/readyz")
                model = get(known["base_url"], known["api_key"], "/models")["data"][0]["id"]
                return Target(known["base_url"], known["api_key"], model, manage, env)
            except (OSError, RuntimeError):
                pass  # not ready yet
        time.sleep(0.5)
    raise SystemExit("the server was not ready after five minutes")


if __name__ == "__main__":
    main()

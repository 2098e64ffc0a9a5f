"""What the gateway takes by itself: requests a second and p50 at 1, 16 and 64 callers; processor time per 1,000 streamed tokens.

Beside it LiteLLM's proxy in front of a backend that answers at once, where `--litellm PYTHON` names an interpreter that has it
(`pip install 'litellm[proxy]'` in an environment of its own). Ours does all of its work meanwhile: limits, money, queue, two
workers, a scripted model, usage. Theirs only passes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from infra.bench.serve import ROOT, target
from infra.bench.support.client import CallFailed, chat, complete, free_port, get
from infra.bench.support.report import Row, arguments, paired, publish, row

CALLERS = (1, 16, 64)
STREAMS = 32
START_S = 120


@dataclass(frozen=True, slots=True)
class Gateway:
    """`processes` are those of the gateway alone."""

    name: str
    base_url: str
    api_key: str
    model: str
    processes: Callable[[], list[int]]

    def body(self, tokens: int) -> dict[str, Any]:
        script = {"text": "word " * (tokens // 5 + 1), "finish": "length"}  # a scripted model's text; others take it for a question
        content = json.dumps({"script": script})
        return {"model": self.model, "max_tokens": tokens, "messages": [{"role": "user", "content": content}]}

    def cpu_s(self) -> float:
        """Processor seconds so far, of all its processes and threads."""
        return sum(_cpu_s(pid) for pid in self.processes())


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--litellm", metavar="PYTHON", help="interpreter of an environment that has LiteLLM's proxy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=100, help="of each round")
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    options = parser.parse_args()
    with ExitStack() as stack:
        gateways = [stack.enter_context(ours())]
        if options.litellm:
            gateways.append(stack.enter_context(litellm(options.litellm)))
        rows = asyncio.run(measure(gateways, options.rounds, options.calls, options.tokens))
    publish(rows, options.json)


async def measure(gateways: Sequence[Gateway], rounds: int, calls: int, tokens: int) -> list[Row]:
    for gateway in gateways:
        await burst(gateway, 8, 16)  # warms what is made lazily
    rows: list[Row] = []
    for callers in CALLERS:
        bursts = await in_turn(gateways, rounds, lambda gateway, callers=callers: burst(gateway, callers, calls))  # type: ignore[misc]
        name = f"{callers} caller{'s' if callers > 1 else ''}"
        rows.append(_row(f"gateway.{callers}.rate", f"{name}, requests/s", gateways, bursts, 0, "1/s", "higher"))
        rows.append(_row(f"gateway.{callers}.p50", f"{name}, p50", gateways, bursts, 1, "ms", "lower"))
    streams = await in_turn(gateways, rounds, lambda gateway: streaming(gateway, tokens))
    rows.append(_row("gateway.cpu", f"{STREAMS} streams, cores per 1,000 tokens/s", gateways, streams, 0, "cores", "lower"))
    rows.append(_row("gateway.speed", f"{STREAMS} streams, output", gateways, streams, 1, "tokens/s", "higher"))
    return rows


async def in_turn(gateways: Sequence[Gateway], rounds: int, run: Callable[[Gateway], Any]) -> list[list[tuple[float, float]]]:
    """Of each gateway what each round gave."""
    found: list[list[tuple[float, float]]] = [[] for _ in gateways]
    for _ in range(rounds):
        for results, gateway in zip(found, gateways, strict=True):
            results.append(await run(gateway))
    return found


def _row(id_: str, figure: str, gateways: Sequence[Gateway], found: Any, index: int, unit: str, better: Any) -> Row:
    values = [[result[index] for result in results] for results in found]
    if len(gateways) == 1:
        return row(id_, figure, values[0], unit, better)
    return paired(id_, figure, values[0], gateways[1].name, values[1], unit, better)


async def burst(gateway: Gateway, callers: int, calls: int) -> tuple[float, float]:
    """Requests a second, and the median of what a caller waited (ms). One token each, not streamed."""
    waited: list[float] = []
    left = iter(range(calls))

    async def call() -> None:
        for _ in left:
            began = time.perf_counter()
            await complete(gateway.base_url, gateway.api_key, gateway.body(1))
            waited.append(1000 * (time.perf_counter() - began))

    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(callers)))
    return calls / (time.perf_counter() - began), statistics.median(waited)


async def streaming(gateway: Gateway, tokens: int) -> tuple[float, float]:
    """Cores of the gateway per 1,000 tokens/s, and tokens/s."""
    cpu_s, began = gateway.cpu_s(), time.perf_counter()
    streams = await asyncio.gather(*(chat(gateway.base_url, gateway.api_key, gateway.body(tokens)) for _ in range(STREAMS)))
    made = sum(int(stream.usage["completion_tokens"]) for stream in streams)
    return 1000 * (gateway.cpu_s() - cpu_s) / made, made / (time.perf_counter() - began)


@contextmanager
def ours() -> Iterator[Gateway]:
    with target(more={"BRIGADE_MODEL": "scripted"}) as server:
        found = _processes("controlplane.gateway", server.port)
        yield Gateway("brigade", server.base_url, server.api_key, server.model, lambda: found)


@contextmanager
def litellm(python: str) -> Iterator[Gateway]:
    """One worker, no database, as its documentation starts it."""
    backend_port, port, key = free_port(), free_port(), f"sk-{secrets.token_hex(16)}"
    environment = {**os.environ, "LITELLM_MASTER_KEY": key, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    upstream = {"model": "openai/instant", "api_base": f"http://127.0.0.1:{backend_port}/v1", "api_key": "none"}
    with tempfile.TemporaryDirectory(prefix="brigade-bench-") as folder, ExitStack() as stack:
        config = Path(folder) / "config.yaml"
        config.write_text(json.dumps({"model_list": [{"model_name": "instant", "litellm_params": upstream}]}))  # JSON is YAML
        backend = [sys.executable, "-m", "infra.bench.support.instant", str(backend_port)]
        stack.enter_context(_running(backend, dict(os.environ)))
        proxy = [str(Path(python).parent / "litellm"), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        process = stack.enter_context(_running(proxy, environment))
        base_url = f"http://127.0.0.1:{port}/v1"
        _wait(process, base_url, key)
        yield Gateway("litellm", base_url, key, "instant", lambda: [process.pid])


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _wait(process: subprocess.Popen[bytes], base_url: str, key: str) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            get(base_url, key, "/models")
            return
        except (OSError, CallFailed):
            time.sleep(0.5)
    raise SystemExit("LiteLLM's proxy did not start")


def _processes(module: str, port: str) -> list[int]:
    """Of ours: who runs the module on the port."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if module in words and port in words:
            found.append(int(path.name))
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

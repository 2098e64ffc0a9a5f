"""Logs into the console and saves a page as Chromium shows it. Chromium is driven through its DevTools protocol."""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, Request, build_opener

from websockets.sync.client import ClientConnection, connect

WIDTH, HEIGHT = 1280, 800
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
START_S, LOAD_S, SETTLE_S = 30, 15, 2.0
SESSION_COOKIE = "brigade_console"


def main() -> None:
    options = _options()
    credentials = json.loads(options.credentials.read_text() if options.credentials else _demo_credentials())
    session = log_in(credentials["console_url"], credentials["console_user"], credentials["console_password"])
    address = urljoin(credentials["console_url"], options.page)
    with _browser() as page:
        picture = photograph(page, address, session, theme=options.theme, height=options.height)
    options.output.write_bytes(picture)
    print(f"{options.output}: {len(picture) / 1000:.0f} kB, {address}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", default="", help="relative to the console's address; default: its first page")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--height", type=int, default=HEIGHT)
    parser.add_argument("--credentials", type=Path, help="a file like the output of manage.py demo_credentials --json")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("console.png"))
    return parser.parse_args()


def _demo_credentials() -> str:
    command = [sys.executable, "manage.py", "demo_credentials", "--json"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def log_in(console_url: str, user: str, password: str) -> str:
    """The session cookie of an operator."""
    jar = CookieJar()
    opener = build_opener(HTTPCookieProcessor(jar))
    login = urljoin(console_url, "login/")
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', opener.open(login, timeout=20).read().decode())
    if found is None:
        sys.exit(f"{login} shows no login form")
    form = {"csrfmiddlewaretoken": found[1], "username": user, "password": password, "next": "/console/"}
    opener.open(Request(login, urlencode(form).encode(), {"Referer": login}), timeout=20).read()
    for cookie in jar:
        if cookie.name == SESSION_COOKIE and cookie.value:
            return cookie.value
    sys.exit("the console refused the login")


class Page:
    """A tab: `call` sends a command of the protocol and answers its result."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=LOAD_S))
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._listen(message)

    def _listen(self, message: dict[str, Any]) -> None:
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(str(message["params"]["entry"]["text"]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")


def photograph(page: Page, address: str, session: str, *, theme: str, height: int) -> bytes:
    """A PNG of the page as an operator sees it when its parts have arrived."""
    for domain in ("Page", "Runtime", "Log", "Network"):
        page.call(f"{domain}.enable")
    page.call("Network.setCookie", name=SESSION_COOKIE, value=session, url=address, path="/console/", httpOnly=True)
    page.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    page.call("Page.navigate", url=address)
    deadline = time.monotonic() + LOAD_S
    while page.value("location.href") == "about:blank" or page.value("document.readyState") != "complete":
        if time.monotonic() > deadline:
            sys.exit(f"{address} did not load within {LOAD_S} s")
        time.sleep(0.1)
    time.sleep(SETTLE_S)
    for complaint in [page.value("location.pathname.includes('/login/') ? 'the session was refused' : ''"), *page.complaints]:
        if complaint:
            print(f"the page complains: {complaint}", file=sys.stderr)
    return base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"])


@contextmanager
def _browser() -> Iterator[Page]:
    """A browser of our own, with an empty profile; it ends with the block."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory(prefix="brigade-picture-", ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            with connect(_tab(Path(profile)), max_size=None, compression=None) as socket:
                yield Page(socket)
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too: they write into the profile
            process.wait(10)


def _tab(profile: Path) -> str:
    """The address of the first tab, as soon as the browser has chosen its port."""
    file = profile / "DevToolsActivePort"
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if file.exists() and (lines := file.read_text().split()):
            tabs = json.loads(build_opener().open(f"http://127.0.0.1:{lines[0]}/json", timeout=5).read())
            for tab in tabs:
                if tab["type"] == "page":
                    return str(tab["webSocketDebuggerUrl"])
        time.sleep(0.1)
    sys.exit(f"the browser did not start within {START_S} s")


if __name__ == "__main__":
    main()

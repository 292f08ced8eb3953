"""A headless Chromium by the DevTools protocol: one tab, what it asks of the network, what its console says."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--mute-audio",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-features=IsolateSandboxedIframes,Translate,OptimizationHints", "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)  # fmt: skip
_PATIENCE_S = 60.0


def found() -> str | None:
    """The program, or None where no Chromium is installed."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Tab:
    """One page. `requests`: every address that it asked for; `errors`: what it complained about."""

    def __init__(self, socket: websocket.WebSocket) -> None:
        self._socket = socket
        self._last = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.contexts: dict[str, int] = {}  # frame id -> execution context
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come before are noted."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._last:
                assert "error" not in message, f"{method}: {message['error']}"
                result: dict[str, Any] = message["result"]
                return result
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Runtime.executionContextCreated":
            self.contexts[params["context"]["auxData"]["frameId"]] = params["context"]["id"]

    def evaluate(self, script: str, context: int | None = None) -> Any:
        """The value of an expression in the page, or in one of its frames; a promise is waited for."""
        where = {} if context is None else {"contextId": context}
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, **where)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def wait_for(self, script: str, context: int | None = None, patience_s: float = _PATIENCE_S) -> Any:
        """Until an expression is true; else fails with it, what the page shows and what it complained about."""
        until = time.monotonic() + patience_s
        careful = (
            f"(() => {{ try {{ return {script}; }} catch {{ return false; }} }})()"  # a page may not stand yet
        )
        while time.monotonic() < until:
            value = self.evaluate(careful, context)
            if value:
                return value
            time.sleep(0.1)
        seen = self.evaluate("document.body.innerText.slice(0, 2000)")
        raise AssertionError(f"never true: {script}\nerrors: {self.errors}\nthe page shows: {seen}")

    def look(self, width: int, scheme: str = "light", height: int = 900, media: str = "") -> None:
        """Be so wide, light or dark, on a screen or in print."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = True) -> None:
        """A screenshot, of the whole page or of what is in view."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def browser() -> Iterator[Tab]:
    """A Chromium of its own with one empty tab; ended with all its processes."""
    program = found()
    assert program is not None, "no Chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            socket = websocket.create_connection(
                _address(Path(profile), process), suppress_origin=True, timeout=_PATIENCE_S, max_size=None
            )
            try:
                yield Tab(socket)
            finally:
                socket.close()
        finally:
            end(process)


def _address(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """Where its first tab listens."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        lines = (
            (profile / "DevToolsActivePort").read_text().split()
            if (profile / "DevToolsActivePort").exists()
            else []
        )
        if lines:
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                tabs = [t for t in json.load(answer) if t["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.1)
    raise AssertionError("Chromium did not open a tab")


def end(process: subprocess.Popen[bytes]) -> None:
    """The process and all that it started, in order, then without asking."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(15)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue

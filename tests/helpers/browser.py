"""Headless Chromium, cut off from the network, through the DevTools protocol over a pair of pipes."""

import json
import os
import queue
import select
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any, Self

LIMIT = 30.0  # seconds any one wait may take
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --hide-scrollbars --disable-dev-shm-usage --disable-breakpad
--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4
--no-proxy-server --remote-debugging-pipe"""  # the blink settings are a mouse: (hover: hover), (pointer: fine)
# puts the two pipes where Chromium looks for them; every request to a host fails at once
SHELL = 'exec "$0" "$@" "--host-resolver-rules=MAP * ~NOTFOUND" 3<&0 4>&1 </dev/null >/dev/null'
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
POINT = """((selector, across, down) => {
    const inside = (at, size) => size < 1 ? size / 2 : Math.min(Math.max(at, 0.5), size - 0.5);
    const element = document.querySelector(selector);
    if (!element?.getClientRects().length) throw Error("not in the page, or not shown: " + selector);
    element.scrollIntoView({block: "center", inline: "center", behavior: "instant"});
    const box = element.getBoundingClientRect(), left = scrollX, top = scrollY;
    const x = box.left + inside(across * box.width, box.width), y = box.top + inside(down * box.height, box.height);
    scrollBy({left: x - inside(x, innerWidth), top: y - inside(y, innerHeight), behavior: "instant"});  // it is large
    return [x - scrollX + left, y - scrollY + top];
})"""


class BrowserError(Exception):
    """Chromium did not do what was asked in time, refused it, or the page threw."""


def chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def thrown(details: dict[str, Any]) -> str:
    """The text of what was thrown: an Error's stack, or the value."""
    error = details | details.get("exception", {})
    return str(next(error[key] for key in ("description", "value", "text") if key in error))


class Browser:
    """A Chromium of its own, with a folder of its own for all it writes; both are gone when the context ends."""

    def __enter__(self) -> Self:
        self._count, self.pages = 0, dict[str, Page]()
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._folder = home = Path(tempfile.mkdtemp(prefix="browser-"))
        command = ["sh", "-c", SHELL, chromium() or "chromium", *FLAGS.split(), f"--user-data-dir={home / 'profile'}"]
        options: dict[str, Any] = {"env": os.environ | {"HOME": str(home), "TMPDIR": str(home)}, "bufsize": 0}
        options |= {"stdin": PIPE, "stdout": PIPE, "start_new_session": True}
        with open(home / "stderr", "wb") as log:
            self._process = Popen[bytes](command, stderr=log, **options)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        try:
            self.send("Browser.getVersion")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(LIMIT)
        with self._process:  # closes the pipes
            self._process.wait(LIMIT)
        end = time.monotonic() + 5  # its last children may still be writing
        while self._folder.exists() and time.monotonic() < end:
            shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, path: Path, width: int = 1200, height: int = 900, dark: bool = False, touch: bool = False) -> "Page":
        """Load a file in a window and a profile of its own; `touch` makes it a phone: no hover, a coarse pointer."""
        return Page(self, path, width, height, dark, touch)

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Give one command and return its result."""
        self._count += 1
        command = {"id": self._count, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data, end = memoryview(json.dumps(command).encode() + b"\0"), time.monotonic() + LIMIT
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended: take() says so, and why
            while data:
                if not select.select([], [self._process.stdin], [], max(0.0, end - time.monotonic()))[1]:
                    raise BrowserError(f"waited {LIMIT:g} s for Chromium to read {method}")
                data = data[self._process.stdin.write(data[: select.PIPE_BUF]) :]  # as much as never blocks
        while (answer := self.take(f"the answer to {method} {str(params)[:300]}", end)).get("id") != self._count:
            pass
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def take(self, what: str, end: float) -> dict[str, Any]:
        """The next message, shown to its page first; `what` is waited for until `end`."""
        try:
            message = self._messages.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            raise BrowserError(f"waited {LIMIT:g} s for {what}") from None
        if message is None:
            self._messages.put(None)  # for whoever asks next
            log = (self._folder / "stderr").read_text(errors="replace")[-2000:]
            raise BrowserError(f"Chromium ended while waiting for {what}; its last words:\n{log}")
        if "method" in message and (page := self.pages.get(message.get("sessionId", ""))):
            page.event(message["method"], message["params"])
        return message

    def _read(self, pipe: IO[bytes]) -> None:
        rest = bytearray()
        while data := pipe.read(1 << 20):
            rest += data
            if b"\0" in data:
                *messages, rest = rest.split(b"\0")
                for message in messages:
                    self._messages.put(json.loads(message))
        self._messages.put(None)


class Page:
    """One loaded page, made by `Browser.open`; `console` and `requests` are up to date after every method."""

    def __init__(self, browser: Browser, path: Path, width: int, height: int, dark: bool, touch: bool) -> None:
        self.console: list[str] = []  # errors and warnings: console calls, what nobody caught, the browser's own
        self.requests: list[str] = []  # addresses asked for, without data: URLs and the page's own
        self._browser, self._touch, self._url, self._loaded = browser, touch, "", ""
        self._context = browser.send("Target.createBrowserContext")["browserContextId"]  # so a window of its own
        target = browser.send("Target.createTarget", url="about:blank", browserContextId=self._context)
        session = browser.send("Target.attachToTarget", **target, flatten=True)["sessionId"]
        browser.pages[session] = self
        self._send: Callable[..., dict[str, Any]] = partial(browser.send, session=session)
        for domain in ("Runtime", "Log", "Network", "Page", "Inspector"):
            self._send(f"{domain}.enable")
        self._send("Page.setLifecycleEventsEnabled", enabled=True)
        self._send("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.dark(dark)
        self.resize(width, height)
        answer = self._send("Page.navigate", url=path.absolute().as_uri())
        if "errorText" in answer:
            raise BrowserError(f"{path}: {answer['errorText']}")
        end = time.monotonic() + LIMIT
        while self._loaded != answer["loaderId"]:
            browser.take(f"the load event of {path}", end)
        self.evaluate(FRAMES)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        answer = self._send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{thrown(answer['exceptionDetails'])}\nin: {expression[:300]}")
        special = answer["result"].get("unserializableValue")  # NaN, Infinity, -0
        return float(special) if special else answer["result"].get("value")

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5) -> None:
        """Bring the element into view and the mouse to that fraction of its box."""
        x, y = self.evaluate(f"{POINT}({json.dumps(selector)}, {x}, {y})")
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        self.evaluate(FRAMES)

    def click(self, selector: str) -> None:
        """Click the middle of the element."""
        x, y = self.evaluate(f"{POINT}({json.dumps(selector)}, 0.5, 0.5)")
        for kind, button in (("Moved", "none"), ("Pressed", "left"), ("Released", "left")):
            self._send("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, button=button, clickCount=1)
        self.evaluate(FRAMES)

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": self._touch}
        self._send("Emulation.setDeviceMetricsOverride", **size)
        self.evaluate(FRAMES)

    def dark(self, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self.evaluate(FRAMES)

    def close(self) -> None:
        self._browser.send("Target.disposeBrowserContext", browserContextId=self._context)

    def event(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                words = [str(arg.get("value", arg.get("description", arg["type"]))) for arg in params["args"]]
                self.console.append(f"{params['type']}: {' '.join(words)}")
            case "Runtime.exceptionThrown":
                self.console.append(f"exception: {thrown(params['exceptionDetails'])}")
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.console.append("{level}: {text} {url}".format(**{"url": "", **params["entry"]}))
            case "Network.requestWillBeSent" | "Network.webSocketCreated":
                url = params.get("request", params)["url"]
                self._url = self._url or url  # the first is the page's own, in Chromium's spelling
                if url != self._url and not url.startswith("data:"):
                    self.requests.append(url)
            case "Page.lifecycleEvent" if params["name"] == "load":
                self._loaded = params["loaderId"]
            case "Inspector.targetCrashed":
                raise BrowserError("the page's process crashed")

"""What a long command is doing, on stderr, where somebody watches."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status

_WORDS = {
    "importing": "Importing",
    "tracing": "Tracing",
    "unlimited": "It does not fit: tracing without a limit",
    "surveying": "Looking at a step",
    "choosing": "Choosing",
    "trying": "Trying the plan",
    "replaying": "Replaying the allocator",
}


class Progress:
    """Shows the messages of a running workload. Nothing where stderr is no terminal.

    Args:
        console: on stderr.
        script: whether what the workload prints is shown, so that a spinner would be in
            its way.
    """

    def __init__(self, console: Console, script: bool) -> None:
        self._console = console
        self._script = script
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("Starting")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, message: dict[str, Any]) -> None:
        """Show what `message`, a dict with ``event`` and its data, says."""
        if self._status is None or message["event"] != "phase":
            return
        text = _line(message)
        if self._script and message["text"] in ("tracing", "surveying") and not message["quiet"]:
            self._status.stop()
            self._console.print(text, style="dim")
            return
        self._status.update(text)
        self._status.start()


def _line(message: dict[str, Any]) -> str:
    text = str(_WORDS.get(message["text"], message["text"]))
    if message.get("gpu"):
        text += f" on {message['gpu']}"
    for name, what in (("batch", "batch"), ("seq", "sequence length")):
        if message.get(name):
            text += f", {what} {message[name]}"
    return text

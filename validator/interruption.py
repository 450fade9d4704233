"""Ctrl-C, or a scheduler's SIGTERM, as an exception that lets what was measured be collected."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Interrupted", "interruptible"]

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """A signal came. No Exception, so that nothing on the way takes it for a failure of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_code = 128 + number  # as shells say it


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, the first signal raises `Interrupted`; more of them do not disturb the clean-up."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return

    def stop(number: int, _: object) -> None:
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, stop) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

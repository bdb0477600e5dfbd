"""How Ctrl-C and SIGTERM reach a conversion that a command line started. Imports little: it is loaded first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Signals", "Terminated"]

#: How long a signal waits for somebody to call `Signals.check`.
PATIENCE_S = 1


class Terminated(KeyboardInterrupt):
    """SIGTERM."""


class Signals:
    """Let Ctrl-C and SIGTERM end the conversion, for certain and without noise.

    Python drops an exception that a signal handler raises inside a destructor or a weakref's callback, and prints it;
    h5py has many such. So while somebody calls `check` the signal is only noted, and raised there. Where nobody did
    within a second, the alarm raises it wherever the program is.
    """

    def __init__(self) -> None:
        self._noted: KeyboardInterrupt | None = None
        self._checked_s = time.monotonic()

    def check(self) -> None:
        self._checked_s = time.monotonic()
        if self._noted is not None:
            signal.alarm(0)
            raise self._noted

    @contextmanager
    def handled(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "alarm"):
            yield
            return
        kinds: dict[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}

        def note(number: int, _: object) -> None:
            again = self._noted is not None
            self._noted = self._noted or kinds[number]()
            if again or time.monotonic() - self._checked_s > PATIENCE_S:
                raise self._noted
            signal.alarm(PATIENCE_S)

        before = {number: signal.signal(number, note) for number in (*kinds, signal.SIGALRM)}
        try:
            yield
        finally:
            signal.alarm(0)
            for number, handler in before.items():
                signal.signal(number, handler)

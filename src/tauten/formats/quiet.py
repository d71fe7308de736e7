"""Third-party graph tools, kept from talking where nobody listens."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """What is logged inside goes to whoever set up logging, and otherwise nowhere; what is printed goes nowhere.

    Without any handler Python prints warnings to stderr, and `logging.warning` sets up the root logger for good. One handler
    that does nothing prevents both.
    """
    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        root.removeHandler(nobody)

"""Third-party graph tools, kept from talking where nobody listens."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """What is logged inside goes to whoever set up logging, and otherwise nowhere.

    Without any handler Python prints warnings to stderr, and `logging.warning` sets up the root logger for good. One handler
    that does nothing prevents both.
    """
    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)
    try:
        yield
    finally:
        root.removeHandler(nobody)

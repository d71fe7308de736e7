"""The tree of errors is complete where it is drawn, and whoever answers has an answer for every code."""

import inspect
import re

import pytest

from tauten.cli.main import EXIT_CODES
from tauten.spec import errors, plugins
from tauten.spec.errors import Code, TautenError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, TautenError)]
PUBLIC = [c for c in CLASSES if not c.__name__.startswith("_")]
DRAWN = re.findall(r"^(?:[│ ]*[├└]── )?(\w+)(?: {2,}\S.*)?$", (errors.__doc__ or "").partition("\n\n")[2], re.MULTILINE)


def test_the_docstring_draws_every_class_once() -> None:
    assert sorted(DRAWN) == sorted(c.__name__ for c in PUBLIC)


@pytest.mark.parametrize("error", PUBLIC, ids=lambda c: c.__name__)
def test_every_error_has_a_code_and_says_what_it_is(error: type[TautenError]) -> None:
    assert error.code in Code
    assert error.__doc__


def test_the_command_has_an_exit_code_for_every_code() -> None:
    assert set(EXIT_CODES) == set(Code)
    assert set(EXIT_CODES.values()) <= {1, 2, 3, 4}


@pytest.mark.parametrize("front", plugins.names("fronts"))
def test_every_front_has_a_status_for_every_code(front: str) -> None:
    status: dict[Code, int] = plugins.load("fronts", front).STATUS
    assert set(status) == set(Code)
    assert all(400 <= number <= 599 for number in status.values())


def test_no_code_without_an_error_that_carries_it() -> None:
    assert {c.code for c in PUBLIC} == set(Code)

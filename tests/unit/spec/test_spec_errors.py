"""What an error says, and what it carries. That the tree is complete is tested in tests/architecture."""

import pytest

from tauten.spec.errors import (
    AlreadyExists,
    BadInput,
    BadRequest,
    Code,
    Lacking,
    MissingExtra,
    Overloaded,
    PortInUse,
    TautenError,
)


def test_a_message_and_its_fix() -> None:
    error = BadRequest("input 'x' has type int32, expected int64", fix="send INT64")
    assert (error.message, error.fix) == ("input 'x' has type int32, expected int64", "send INT64")
    assert str(error) == "input 'x' has type int32, expected int64 (fix: send INT64)"
    assert str(BadRequest("plain")) == "plain"


@pytest.mark.parametrize(
    ("error", "parent", "code"),
    [(BadRequest("m"), BadInput, Code.INVALID), (AlreadyExists("m"), BadInput, Code.ALREADY_EXISTS),
     (PortInUse("m"), Lacking, Code.LACKING), (TautenError("m"), Exception, Code.INTERNAL)],
)  # fmt: skip
def test_who_catches_the_parent_gets_the_child(error: TautenError, parent: type[Exception], code: Code) -> None:
    assert isinstance(error, parent)
    assert error.code is code


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = MissingExtra("tokenizers", "text", needed_for="processors/text")
    assert str(error) == (
        "processors/text needs the package 'tokenizers', which is not installed (fix: pip install 'tauten[text]')"
    )


def test_overloaded_says_when_to_come_back() -> None:
    assert Overloaded("full", retry_after_s=2.5).retry_after_s == 2.5
    assert Overloaded("full").retry_after_s > 0


def test_codes_are_words_and_not_numbers() -> None:
    assert all(code.value.replace("_", "").isalpha() for code in Code)

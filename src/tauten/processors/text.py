"""Text in: a tokenizer.json beside the model turns texts into ids and masks, and the outputs go back as JSON.

The folder may hold processor.json, `{"ids": …, "mask": …, "types": …}`, for models whose inputs have other names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tokenizers

from tauten.spec.errors import BadBundle, BadRequest
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.tensors import Array

EXTRA = "text"
CONTENT_TYPES = ("application/json", "text/plain")


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which inputs take the ids, the mask and the token types; the last two only where the model has them."""

    ids: str = "input_ids"
    mask: str = "attention_mask"
    types: str = "token_type_ids"


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What clients send: one text or several."""

    text: str | list[str]


def open(folder: Path, signature: Signature) -> TextProcessor:  # noqa: A001  the name every processor has
    """Reads the tokenizer. Raises BadBundle when it is missing, damaged, or not for this signature."""
    try:
        custom = folder / "processor.json"
        names = msgspec.json.decode(custom.read_bytes(), type=Names) if custom.exists() else Names()
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:
        raise BadBundle(f"the tokenizer in {folder.name!r} cannot be read: {error}", fix="build the bundle again") from error
    spec = signature.inputs.get(names.ids)
    if spec is None or len(spec.shape) != 2 or spec.shape[0] != BATCH or not isinstance(spec.shape[1], str):
        raise BadBundle(f"a text processor needs an input {names.ids!r} of shape [batch, <length>]; the contract has "
                        f"{', '.join(f'{n} {s.describe()}' for n, s in signature.inputs.items())}",
                        fix="name the inputs in processors/processor.json")  # fmt: skip
    return TextProcessor(tokenizer, names, signature, spec.shape[1])


@dataclass(frozen=True, slots=True)
class Context:
    """`single` answers a text given alone with its row alone."""

    single: bool


class TextProcessor:
    """Texts to inputs, outputs to JSON. The tokenizer's own padding and truncation are set aside: the axes decide."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, names: Names, signature: Signature, length: str) -> None:
        self._names, self._signature = names, signature
        self._axis = signature.axes.get(length, Axis(min=1, max=512))
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length=self._axis.max // self._axis.multiple_of * self._axis.multiple_of)

    def encode(self, content_type: str, body: bytes) -> tuple[list[dict[str, Array]], Context]:
        """One set of single-row inputs for each text. Raises BadRequest."""
        texts, single = self._texts(content_type, body)
        batch = self._signature.axes.get(BATCH)
        if not texts or (batch and len(texts) > batch.max):
            allowed = f"1 to {batch.max}" if batch else "at least 1"
            raise BadRequest(f"{len(texts)} texts came, allowed is {allowed}", fix="send them in several requests")
        return [self._inputs([e]) for e in self._tokenizer.encode_batch(texts)], Context(single)

    def encode_texts(self, texts: list[str]) -> dict[str, Array]:
        """All texts as one batch, padded to the longest."""
        return self._inputs(self._tokenizer.encode_batch(texts))

    def decode(self, outputs: Sequence[Mapping[str, Array]], context: Context) -> tuple[str, bytes]:
        """Every output by name: its row for a single text, a list of rows for several. A value that is not finite is null."""
        rows = {name: [o[name][0].tolist() for o in outputs] for name in outputs[0]}
        answer: dict[str, Any] = {name: values[0] for name, values in rows.items()} if context.single else rows
        return "application/json", msgspec.json.encode(answer)

    def _texts(self, content_type: str, body: bytes) -> tuple[list[str], bool]:
        kind = content_type.partition(";")[0].strip().lower()
        if kind not in CONTENT_TYPES:
            raise BadRequest(f"content type {content_type!r} is not understood", fix=f"send {' or '.join(CONTENT_TYPES)}")
        if kind == "text/plain":
            try:
                return [body.decode("utf-8")], True
            except UnicodeDecodeError as error:
                raise BadRequest(f"the text is not UTF-8: {error.reason} at byte {error.start}", fix="send UTF-8") from error
        try:
            text = msgspec.json.decode(body, type=Body).text
        except msgspec.DecodeError as error:  # bad UTF-8 inside the JSON too
            raise BadRequest(
                f'the body is not {{"text": …}}: {error}', fix='send {"text": "…"} or {"text": ["…", "…"]}'
            ) from error
        return ([text], True) if isinstance(text, str) else (text, False)

    def _inputs(self, encodings: Sequence[tokenizers.Encoding]) -> dict[str, Array]:
        axis, inputs = self._axis, self._signature.inputs
        longest = max(axis.min, *(len(e.ids) for e in encodings))
        length = -(-longest // axis.multiple_of) * axis.multiple_of
        found: dict[str, Array] = {}
        columns = ((self._names.ids, "ids"), (self._names.mask, "attention_mask"), (self._names.types, "type_ids"))
        for name, column in columns:
            if name in inputs:
                spec = inputs[name]
                found[name] = np.full((len(encodings), length), spec.pad or 0, spec.element.numpy)
                for row, encoding in zip(found[name], encodings, strict=True):
                    values = getattr(encoding, column)
                    row[: len(values)] = values
        return found

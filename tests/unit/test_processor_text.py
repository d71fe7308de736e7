"""Text in, rows out: the tokenizer's own limits set aside, the contract's kept."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from tauten import testing
from tauten.processors import text
from tauten.spec.contract import Contract
from tauten.spec.errors import BadBundle, BadRequest
from tauten.spec.infer import InferRequest
from tauten.spec.signature import Signature

JSON = "application/json"


def opened(folder: Path, signature: Signature | None = None, names: bytes = b"") -> text.TextProcessor:
    (folder / "tokenizer.json").write_bytes(testing.tiny_tokenizer())
    if names:
        (folder / "processor.json").write_bytes(names)
    return text.open(folder, signature or testing.tiny_contract().signature)


def signature(**inputs: object) -> Signature:
    outputs = {"y": {"dtype": "float32", "shape": ["batch"]}}
    axes = {"batch": {"max": 4}, "n": {"min": 4, "max": 14, "multiple_of": 4}}
    return Contract.of({"contract": 1, "inputs": inputs, "outputs": outputs, "axes": axes}).signature


def test_one_text_becomes_one_row_without_padding(tmp_path: Path) -> None:
    rows, context = opened(tmp_path).encode(JSON, b'{"text": "w3 w4"}')
    assert [{k: v.tolist() for k, v in r.items()} for r in rows] == [{"input_ids": [[1, 3, 4]], "attention_mask": [[1, 1, 1]]}]
    assert rows[0]["input_ids"].dtype == np.int64
    assert context.single


def test_several_texts_go_their_own_ways(tmp_path: Path) -> None:
    rows, context = opened(tmp_path).encode("application/json; charset=utf-8", b'{"text": ["w3 w4", "", "nobody knows"]}')
    assert [r["input_ids"].tolist() for r in rows] == [[[1, 3, 4]], [[1]], [[1, 2, 2]]]
    assert not context.single


def test_plain_text_is_one_text(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path).encode("text/plain", b"w5")
    assert rows[0]["input_ids"].tolist() == [[1, 5]]


def test_long_texts_are_cut_at_the_axis_not_at_the_tokenizers_own_limit(tmp_path: Path) -> None:
    rows, _ = opened(tmp_path).encode("text/plain", b"w3 " * 40)
    assert rows[0]["input_ids"].tolist() == [[1] + [3] * (testing.LONGEST - 1)]


def test_encode_texts_pads_to_the_longest(tmp_path: Path) -> None:
    batch = opened(tmp_path).encode_texts(["w3", "w3 w4 w5"])
    assert batch["input_ids"].tolist() == [[1, 3, 0, 0], [1, 3, 4, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_other_names_types_and_steps_of_the_length(tmp_path: Path) -> None:
    sig = signature(
        ids={"dtype": "int32", "shape": ["batch", "n"], "pad": 7},
        kinds={"dtype": "int8", "shape": ["batch", "n"], "pad": 0},
    )
    processor = opened(tmp_path, sig, b'{"ids": "ids", "types": "kinds"}')
    rows, _ = processor.encode("text/plain", b"w3 w4 w5 w6")
    assert rows[0]["ids"].tolist() == [[1, 3, 4, 5, 6, 7, 7, 7]]
    assert {k: str(v.dtype) for k, v in rows[0].items()} == {"ids": "int32", "kinds": "int8"}
    assert processor.encode("text/plain", b"w3")[0][0]["ids"].shape == (1, 4)
    assert processor.encode("text/plain", b"w3 " * 40)[0][0]["ids"].shape == (1, 12)


@pytest.mark.parametrize(
    ("kind", "body", "says"),
    [
        ("text/plain", b"\xff", "not UTF-8: invalid start byte at byte 0"),
        (JSON, b"\xff", "the body is not"),
        (JSON, b'{"text": "\xff"}', "the body is not"),
        (JSON, b"{", "the body is not"),
        (JSON, b"[]", "Expected `object`"),
        (JSON, b"{}", "missing required field `text`"),
        (JSON, b'{"text": 1}', "Expected `str | array`"),
        (JSON, b'{"text": ["a", 1]}', "Expected `str`"),
        (JSON, b'{"text": "a", "texts": 1}', "unknown field `texts`"),
        (JSON, b'{"text": []}', "0 texts came, allowed is 1 to 32"),
        (JSON, json.dumps({"text": ["a"] * 33}).encode(), "33 texts came, allowed is 1 to 32"),
        ("image/png", b"", "content type 'image/png' is not understood"),
        ("", b"", "content type '' is not understood"),
    ],
)
def test_what_cannot_be_read_is_told_in_one_message(tmp_path: Path, kind: str, body: bytes, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        opened(tmp_path).encode(kind, body)
    assert says in caught.value.message
    assert caught.value.fix


def test_decoding_gives_a_row_or_rows_and_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    processor = opened(tmp_path)
    one, two = ({"y": np.array([[v, 1.0]], np.float32)} for v in (0.5, np.nan))
    assert processor.decode([one], text.Context(single=True)) == (JSON, b'{"y":[0.5,1.0]}')
    assert processor.decode([one, two], text.Context(single=False)) == (JSON, b'{"y":[[0.5,1.0],[null,1.0]]}')


@pytest.mark.parametrize("content", [None, b"", b"{}"], ids=["missing", "empty", "not a tokenizer"])
def test_a_damaged_tokenizer_is_a_bad_bundle(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(BadBundle, match="cannot be read"):
        text.open(tmp_path, testing.tiny_contract().signature)


def test_a_signature_without_ids_is_a_bad_bundle(tmp_path: Path) -> None:
    with pytest.raises(
        BadBundle, match=r"needs an input 'input_ids' of shape \[batch, <length>\]; the contract has image uint8"
    ):
        opened(tmp_path, signature(image={"dtype": "uint8", "shape": ["batch", "n"]}))


def test_predict_answers_as_infer_does(tmp_path: Path) -> None:
    async def whole() -> None:
        async with testing.service(testing.tiny_bundle(tmp_path, text=True)) as service:
            texts = ["w3 w4", "w5", "w6 " * 15]
            kind, body = await service.predict("tiny", "", JSON, json.dumps({"text": texts}).encode())
            assert kind == JSON
            want = [
                await service.infer(InferRequest("tiny", testing.tiny_inputs(r))) for r in ([1, 3, 4], [1, 5], [1] + [6] * 15)
            ]
            got = json.loads(body)
            assert sorted(got) == ["embedding", "tokens"]
            for row, reply in zip(got["embedding"], want, strict=True):
                np.testing.assert_allclose(row, reply.outputs["embedding"][0], atol=1e-6)
            alone = json.loads((await service.predict("tiny", "1", "text/plain", b"w5"))[1])
            np.testing.assert_allclose(alone["embedding"], want[1].outputs["embedding"][0], atol=1e-6)
            with pytest.raises(BadRequest):
                await service.predict("tiny", "", JSON, b"{}")

    asyncio.run(whole())

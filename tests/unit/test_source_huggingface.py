"""Hugging Face directories: plain encoders and sentence-transformers layouts; what is missing is said."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from tauten.sources import huggingface
from tauten.spec.errors import BadSource, TautenError, Unsupported
from tauten.spec.signature import Axis
from tauten.spec.tensors import TensorSpec

LONGEST, VOCABULARY, WIDTH = 40, 50, 16
MODULES = [{"idx": i, "name": str(i), "path": "", "type": f"sentence_transformers.models.{kind}"}
           for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))]  # fmt: skip
POOLING = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer with random weights."""
    folder = tmp_path_factory.mktemp("hf") / "Tiny BERT"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=LONGEST, pad_token_id=1,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    shutil.copytree(plain, tmp_path / "model")
    return tmp_path / "model"


def as_sentence_transformer(
    folder: Path, modules: list[dict[str, Any]] = MODULES, pooling: dict[str, Any] | None = POOLING
) -> None:
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 33}')
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def run(folder: Path, ids: list[list[int]], mask: list[list[int]]) -> dict[str, np.ndarray]:
    opened = huggingface.open(folder)
    assert opened.reference is not None
    return opened.reference()({"input_ids": np.array(ids), "attention_mask": np.array(mask)})


def test_an_encoder_without_pooling_gives_its_token_states(plain: Path, capfd: pytest.CaptureFixture[str]) -> None:
    opened = huggingface.open(str(plain))
    assert (opened.kind, opened.name, opened.processor) == ("huggingface", "tiny-bert", None)
    assert opened.suggested.inputs == {
        "input_ids": TensorSpec(dtype="int64", shape=("batch", "seq"), range=(0, VOCABULARY - 1), pad=1),
        "attention_mask": TensorSpec(dtype="int64", shape=("batch", "seq"), range=(0, 1), pad=0),
    }
    assert opened.suggested.outputs == {"last_hidden_state": TensorSpec(dtype="float32", shape=("batch", "seq", WIDTH))}
    assert opened.suggested.axes == {
        "batch": Axis(min=1, opt=8, max=32), "seq": Axis(min=1, opt=32, max=LONGEST, buckets=(32, LONGEST)),
    }  # fmt: skip
    assert set(opened.provenance) == {"architecture", "transformers", "weights"}
    assert str(plain.parent) not in str(opened.provenance)
    assert capfd.readouterr() == ("", ""), "no progress bars and no advice"


def test_a_sentence_encoder_pools_over_the_mask_and_normalises(plain: Path, folder: Path) -> None:
    ids, mask = [[5, 6, 7, 1], [8, 9, 1, 1], [1, 1, 1, 1]], [[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
    tokens = run(plain, ids, mask)["last_hidden_state"]
    mean = (tokens * np.array(mask)[..., None]).sum(1) / np.maximum(np.sum(mask, 1, keepdims=True), 1e-9)
    as_sentence_transformer(folder, MODULES[:2])
    pooled = run(folder, ids, mask)["embedding"]
    np.testing.assert_allclose(pooled, mean, atol=1e-6)
    np.testing.assert_array_equal(pooled[2], np.zeros(WIDTH))  # a row with no tokens is no NaN
    (folder / "modules.json").write_text(json.dumps(MODULES))
    np.testing.assert_allclose(
        run(folder, ids, mask)["embedding"][:2], mean[:2] / np.linalg.norm(mean[:2], axis=1, keepdims=True), atol=1e-6
    )


def test_the_layout_bounds_the_length(folder: Path) -> None:
    as_sentence_transformer(folder)
    (folder / "tokenizer.json").write_text("{}")
    opened = huggingface.open(folder)
    assert opened.suggested.outputs == {"embedding": TensorSpec(dtype="float32", shape=("batch", WIDTH))}
    assert opened.suggested.axes["seq"] == Axis(min=1, opt=32, max=33, buckets=(32, 33))
    assert opened.processor == folder
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 4096}')
    assert huggingface.open(folder).suggested.axes["seq"].max == LONGEST, "there are no more positions than that"


def test_answers_do_not_depend_on_padding(folder: Path) -> None:
    as_sentence_transformer(folder)
    alone = run(folder, [[5, 6, 7]], [[1, 1, 1]])["embedding"]
    padded = run(folder, [[5, 6, 7, 1, 1], [9, 9, 9, 9, 9]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])["embedding"]
    np.testing.assert_allclose(padded[0], alone[0], atol=1e-6)


def spoil_nothing(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:100])


def config(change: dict[str, Any]) -> Any:
    def spoil(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({k: v for k, v in (found | change).items() if v is not None}))

    return spoil


def layout(modules: list[dict[str, Any]], pooling: dict[str, Any] | None) -> Any:
    return lambda folder: as_sentence_transformer(folder, modules, pooling)


@pytest.mark.parametrize(
    ("spoil", "kind", "message"),
    [
        (spoil_nothing, BadSource, "holds no model: there is no config.json"),
        (lambda f: (f / "model.safetensors").unlink(), BadSource, "it has a config.json, but no *.safetensors"),
        (only_pickled, BadSource, "its weights are pickled (pytorch_model.bin)"),
        (cut, BadSource, "cannot be loaded: SafetensorError"),
        (lambda f: (f / "config.json").write_text("{"), BadSource, "'config.json' of 'model' cannot be read"),
        (config({"vocab_size": None}), Unsupported, "has no 'vocab_size': only text encoders are supported"),
        (config({"model_type": "no-such-model"}), BadSource, "cannot be loaded: "),
        (layout(MODULES, None), BadSource, "has no 1_Pooling/config.json"),
        (layout(MODULES, POOLING | {"pooling_mode_cls_token": True}), Unsupported, "pooling mean_tokens, cls_token is not"),
        (layout([MODULES[0], MODULES[2]], None), Unsupported, "normalises without pooling"),
        (layout([*MODULES, {"type": "sentence_transformers.models.Dense"}], POOLING), Unsupported, "has a step 'Dense'"),
    ],
    ids=["empty", "no weights", "pickled", "cut", "config", "no text", "unknown", "no pooling", "cls", "normalise", "dense"],
)  # fmt: skip
def test_a_directory_that_is_no_model_is_told_what_it_lacks(
    spoil: Any, kind: type[TautenError], message: str, folder: Path
) -> None:
    spoil(folder)
    assert huggingface.accepts(folder)
    with pytest.raises(kind) as error:
        huggingface.open(folder)
    assert message in error.value.message
    assert "\n" not in error.value.message
    assert error.value.fix


def test_a_bundle_and_a_file_are_left_to_others(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    assert not huggingface.accepts(tmp_path)
    assert not huggingface.accepts(tmp_path / "manifest.json")
    assert not huggingface.accepts("net.py:factory")

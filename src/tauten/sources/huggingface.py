"""A Hugging Face directory: config.json and safetensors, with the pooling of a sentence-transformers layout if it has one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tauten.sources import _torch
from tauten.spec.bundle import sha256
from tauten.spec.errors import BadSource, MissingExtra, Unsupported
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import TensorSpec

EXTRA = "huggingface"
SEQ = "seq"
TOKENIZER = "tokenizer.json"
BATCHES = Axis(min=1, opt=8, max=32)
SHORTEST_BUCKET, USUAL = 32, 32  # tokens: below, padding costs little; a sentence or two
KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}


def accepts(given: object) -> bool:
    """Any directory that is no bundle: one without a model is refused with what it lacks."""
    return isinstance(given, str | Path) and Path(given).is_dir() and not (Path(given) / "manifest.json").exists()


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001, ARG001  the shape every source has
    """Loads the encoder, from this directory alone. Raises BadSource that says what it lacks, MissingExtra, Unsupported."""
    folder = Path(str(given))
    config = _config(folder)
    kinds = _kinds(folder)
    pooled = _pooled(folder, kinds)
    encoder, version = _encoder(folder)
    from tauten.sources._hf_module import Encoder

    module = _torch.frozen_copy(Encoder(encoder, pooled=pooled, normalised="Normalize" in kinds))
    return Opened(
        kind="huggingface",
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-._").lower() or "model",
        suggested=_signature(folder, config, pooled=pooled),
        reference=lambda: _torch.runner(module),
        exporters=_torch.EXPORTERS,
        export=lambda contract, exporter, target: _torch.export(module, contract, exporter, target),
        processor=folder if (folder / TOKENIZER).is_file() else None,
        provenance={
            "architecture": type(encoder).__name__,
            "transformers": version,
            "weights": {p.name: f"sha256:{sha256(p)}" for p in sorted(folder.glob("*.safetensors"))},
        },
    )


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise BadSource(f"{str(folder)!r} holds no model: there is no config.json",
                        fix="give a directory with config.json and *.safetensors, or a model file")  # fmt: skip
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(p.name for p in folder.glob("*.bin"))
        why = f"its weights are pickled ({pickled[0]})" if pickled else "it has a config.json, but no *.safetensors"
        raise BadSource(f"{str(folder)!r} cannot be loaded: {why}",
                        fix="save the model with save_pretrained(…, safe_serialization=True)")  # fmt: skip
    config: dict[str, Any] = _read_json(folder / "config.json")
    if missing := [k for k in ("model_type", "hidden_size", "vocab_size") if k not in config]:
        raise Unsupported(f"config.json of {folder.name!r} has no {missing[0]!r}: only text encoders are supported",
                          fix="give file.py:factory with a module of your own")  # fmt: skip
    return config


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadSource(f"{path.name!r} of {path.parent.name!r} cannot be read: {_torch.one_line(error)}",
                        fix="fetch the model again, whole") from error  # fmt: skip


def _encoder(folder: Path) -> tuple[Any, str]:
    """The encoder and the library's version. Nothing is fetched, and no code in the directory is run."""
    try:
        import torch
        import transformers
    except ModuleNotFoundError as error:
        raise MissingExtra(str(error.name), EXTRA, needed_for="a Hugging Face directory") from error
    with _quietly(transformers):
        try:
            # Attention written out as operators: both exporters translate it, and fusions find it.
            encoder = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, attn_implementation="eager",
                dtype=torch.float32,
            )  # fmt: skip
        except Exception as error:
            # A damaged file, an unknown architecture or a code of its own: each fails in its own way inside the library.
            raise BadSource(f"{folder.name!r} cannot be loaded: {type(error).__name__}: {_torch.one_line(error)}",
                            fix="give a directory with a whole model: config.json and safetensors") from error  # fmt: skip
    return encoder, str(transformers.__version__)


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Without the library's progress bars and advice."""
    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()


def _kinds(folder: Path) -> list[str]:
    """The steps of a sentence-transformers layout in order, such as Transformer, Pooling; empty for a plain model."""
    path = folder / "modules.json"
    kinds = [str(m["type"]).rpartition(".")[2] for m in _read_json(path)] if path.is_file() else []
    if unknown := [k for k in kinds if k not in KNOWN_MODULES]:
        raise Unsupported(f"modules.json of {folder.name!r} has a step {unknown[0]!r}",
                          fix="give file.py:factory with a module that does all steps")  # fmt: skip
    return kinds


def _pooled(folder: Path, kinds: list[str]) -> bool:
    """Whether the layout averages over the tokens. Raises Unsupported for another pooling than the mean."""
    if "Pooling" not in kinds:
        if "Normalize" in kinds:
            raise Unsupported(
                f"{folder.name!r} normalises without pooling", fix="give file.py:factory with a module of your own"
            )
        return False
    path = next(folder.glob("*_Pooling/config.json"), None)
    if path is None:
        raise BadSource(f"{folder.name!r} lists a pooling in modules.json, but has no 1_Pooling/config.json",
                        fix="fetch the model again, whole")  # fmt: skip
    pooling = _read_json(path)
    modes = [key.removeprefix("pooling_mode_") for key, on in pooling.items() if key.startswith("pooling_mode_") and on is True]
    if modes != ["mean_tokens"]:
        raise Unsupported(f"pooling {', '.join(modes) or 'of an unknown kind'} is not supported, only mean_tokens",
                          fix="give file.py:factory with a module that pools")  # fmt: skip
    return True


def _signature(folder: Path, config: dict[str, Any], *, pooled: bool) -> Signature:
    longest = _longest(folder, config)
    hidden = int(config["hidden_size"])
    powers = (SHORTEST_BUCKET << i for i in range(12))
    ids = TensorSpec(
        dtype="int64", shape=(BATCH, SEQ), range=(0, int(config["vocab_size"]) - 1), pad=int(config.get("pad_token_id") or 0)
    )
    answer = {"embedding": TensorSpec(dtype="float32", shape=(BATCH, hidden))} if pooled else {
        "last_hidden_state": TensorSpec(dtype="float32", shape=(BATCH, SEQ, hidden))
    }  # fmt: skip
    return Signature(
        inputs={"input_ids": ids, "attention_mask": TensorSpec(dtype="int64", shape=(BATCH, SEQ), range=(0, 1), pad=0)},
        outputs=answer,
        axes={
            BATCH: BATCHES,
            SEQ: Axis(
                min=1, opt=min(USUAL, longest), max=longest, buckets=(*(b for b in powers if b < longest), longest)
            ),
        },
    )  # fmt: skip


def _longest(folder: Path, config: dict[str, Any]) -> int:
    """Tokens at most: what the layout says, and never more than there are positions."""
    positions = int(config.get("max_position_embeddings") or 512)
    if config["model_type"] in {"roberta", "xlm-roberta", "camembert", "mpnet"}:
        positions -= int(config.get("pad_token_id") or 1) + 1  # they count positions from behind the padding's id
    path = folder / "sentence_bert_config.json"
    told = _read_json(path).get("max_seq_length") if path.is_file() else None
    return min(positions, int(told)) if told else positions

"""A Hugging Face directory: config.json and safetensors, with the pooling of a sentence-transformers layout where it has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tauten.sources import _torch
from tauten.spec.bundle import sha256
from tauten.spec.errors import BadSource, MissingExtra, Unsupported
from tauten.spec.signature import BATCH, Axis, Signature
from tauten.spec.source import Opened
from tauten.spec.tensors import TensorSpec

if TYPE_CHECKING:
    import torch

EXTRA = "huggingface"
SEQ = "seq"
TOKENIZER = "tokenizer.json"
BATCHES = Axis(min=1, opt=8, max=32)


def accepts(given: object) -> bool:
    """A directory with config.json, or one that would be a model if it had one."""
    return isinstance(given, str | Path) and Path(given).is_dir() and not (Path(given) / "manifest.json").exists()


def open(given: object, example_inputs: object = None) -> Opened:  # noqa: A001, ARG001  the shape every source has
    """Loads the encoder. Raises BadSource that says what the directory lacks, MissingExtra, Unsupported."""
    folder = Path(str(given))
    config = _config(folder)
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise MissingExtra("transformers", EXTRA, needed_for="a Hugging Face directory") from error
    pooled = _pooled(folder)
    with _quietly():
        try:
            encoder = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, attn_implementation="eager"
            )
        except (OSError, ValueError, KeyError) as error:
            raise BadSource(f"{folder.name!r} cannot be loaded: {' '.join(str(error).split())[:300]}",
                            fix="the directory must hold a whole model: config.json and its safetensors") from error  # fmt: skip
    module = _wrapped(encoder, pooled=pooled, normalised=pooled and _normalised(folder))
    signature = _signature(folder, config, pooled=pooled)
    names = list(signature.outputs)
    return Opened(
        kind="huggingface",
        name=folder.name.lower(),
        suggested=signature,
        reference=lambda: _torch.runner(module, names),
        exporters=_torch.EXPORTERS,
        export=lambda contract, exporter, target: _torch.export(module, contract, exporter, target),
        processor=folder if (folder / TOKENIZER).is_file() else None,
        provenance={
            "architecture": ", ".join(config.get("architectures") or [type(encoder).__name__]),
            "transformers": transformers.__version__,
            "weights": {p.name: f"sha256:{sha256(p)}" for p in sorted(folder.glob("*.safetensors"))},
        },
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise BadSource(f"{str(folder)!r} holds no model: there is no config.json",
                        fix="give a Hugging Face directory, a model file, or a bundle")  # fmt: skip
    if not any(folder.glob("*.safetensors")):
        pickles = [p.name for p in folder.glob("*.bin")]
        why = f"its weights are pickled ({pickles[0]})" if pickles else "it has no *.safetensors"
        raise BadSource(f"{str(folder)!r} cannot be loaded safely: {why}", fix="save the model with safe_serialization=True")
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadSource(f"{str(path)!r} is not JSON: {error}", fix="fetch the model again") from error
    return config


def _modules(folder: Path) -> list[str]:
    """The kinds of a sentence-transformers layout in order, such as Transformer, Pooling, Normalize; empty for a plain model."""
    path = folder / "modules.json"
    return [m["type"].rpartition(".")[2] for m in json.loads(path.read_text())] if path.is_file() else []


def _pooled(folder: Path) -> bool:
    """Whether the layout averages over the tokens. Raises Unsupported for another pooling than the mean."""
    if "Pooling" not in _modules(folder):
        return False
    pooling = next((json.loads(p.read_text()) for p in folder.glob("*_Pooling/config.json")), None)
    if pooling is None:
        raise BadSource(f"{folder.name!r} lists a pooling in modules.json, but has no *_Pooling/config.json",
                        fix="fetch the model again whole")  # fmt: skip
    modes = [key.removeprefix("pooling_mode_") for key, on in pooling.items() if key.startswith("pooling_mode_") and on]
    if modes != ["mean_tokens"]:
        raise Unsupported(f"pooling {', '.join(modes)} is not supported, only mean_tokens",
                          fix="give file.py:factory with a module that pools")  # fmt: skip
    return True


def _normalised(folder: Path) -> bool:
    return "Normalize" in _modules(folder)


def _wrapped(encoder: torch.nn.Module, *, pooled: bool, normalised: bool) -> torch.nn.Module:
    """The module whose forward has the names of the signature and returns one tensor."""
    from tauten.sources._hf_module import Encoder

    return Encoder(encoder, pooled=pooled, normalised=normalised)


def _signature(folder: Path, config: dict[str, Any], *, pooled: bool) -> Signature:
    limits = folder / "sentence_bert_config.json"
    longest = int(config.get("max_position_embeddings", 512))
    if limits.is_file():
        longest = min(longest, int(json.loads(limits.read_text()).get("max_seq_length", longest)))
    buckets = tuple(b for b in (32, 64, 128, 256, 512, 1024) if b < longest) + (longest,)
    hidden = int(config["hidden_size"])
    return Signature(
        inputs={
            "input_ids": TensorSpec(
                dtype="int64", shape=(BATCH, SEQ), range=(0, int(config["vocab_size"]) - 1), pad=int(config.get("pad_token_id") or 0)
            ),
            "attention_mask": TensorSpec(dtype="int64", shape=(BATCH, SEQ), range=(0, 1), pad=0),
        },
        outputs={
            "embedding": TensorSpec(dtype="float32", shape=(BATCH, hidden)),
        }
        if pooled
        else {"last_hidden_state": TensorSpec(dtype="float32", shape=(BATCH, SEQ, hidden))},
        axes={BATCH: BATCHES, SEQ: Axis(min=1, opt=min(32, longest), max=longest, buckets=buckets)},
    )  # fmt: skip


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars and advice."""
    import transformers

    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        transformers.logging.enable_progress_bar()

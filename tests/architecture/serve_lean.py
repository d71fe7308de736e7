"""Serves a bundle and asks it once over HTTP: `serve_lean.py BUNDLE`. Prints which heavy packages came along."""

import json
import sys
from pathlib import Path

import numpy as np

import tauten


def main(root: str) -> None:
    bundle = tauten.Bundle.open(Path(root))
    ids = np.array([[3, 4, 5], [6, 0, 0]], dtype=np.int64)
    mask = np.array([[1, 1, 1], [1, 0, 0]], dtype=np.int64)
    with tauten.serve(bundle, port=0) as server, tauten.Client(server.url) as client:
        answer = client.infer("tiny", {"input_ids": ids, "attention_mask": mask})
    heavy = sorted({"torch", "transformers", "onnx", "matplotlib", "jinja2", "tokenizers", "pyarrow"} & set(sys.modules))
    json.dump({"embedding": np.asarray(answer["embedding"]).tolist(), "heavy": heavy}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])

"""A server runs without the worlds it does not need: no torch, no onnx, no tokenizer for a model that takes none."""

import json
import subprocess
import sys
from pathlib import Path

from tauten import testing

PROGRAM = """
import json, sys, urllib.request
import tauten
with tauten.serve(sys.argv[1], port=0) as server:
    body = json.dumps({"inputs": [{"name": n, "datatype": "INT64", "shape": [1, 2], "data": [1, 1]}
                                  for n in ("input_ids", "attention_mask")]}).encode()
    answer = json.load(urllib.request.urlopen(server.url + "/v2/models/tiny/infer", body))
heavy = ("torch", "onnx", "transformers", "tokenizers", "scipy", "matplotlib", "jinja2", "pyarrow", "onnxscript", "sympy")
print(json.dumps({"outputs": len(answer["outputs"]), "heavy": [m for m in heavy if m in sys.modules]}))
"""


def test_a_server_imports_nothing_heavy(tmp_path: Path) -> None:
    bundle = testing.tiny_bundle(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(bundle.root)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"outputs": 2, "heavy": []}

"""Bad input on the command line: one message with the fix, the exit code, no traceback, and nothing written."""

import os
import pickle
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tauten import testing
from tauten.cli.main import main

TINY = ["tiny.onnx", "-c", "contract.yaml"]
CONTRACTS = {
    "misspelt": ("axes:", "axis:"),
    "misspelt-inside": ("  opset:", "  opsett:"),
    "upside-down": ("max: 32", "max: 0"),
    "no-yaml": ("name: tiny", "name: [tiny"),
    "twice": ("name: tiny", "name: tiny\nname: tiny"),
    "unknown-type": ("dtype: int64", "dtype: int46"),
    "unknown-precision": ("precision: [float32]", "precision: [float23]"),
    "escapes": ("name: tiny", "name: ../tiny"),
}


class Marks:
    """Leaves a file behind when somebody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('marker', 'w').close()",)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of bad file, made once."""
    folder = tmp_path_factory.mktemp("files")
    testing.write_tiny_model(folder / "tiny.onnx")
    whole = (folder / "tiny.onnx").read_bytes()
    text = testing.tiny_contract().dumps()
    (folder / "contract.yaml").write_text(text)
    for name, (before, after) in CONTRACTS.items():
        assert before in text
        (folder / f"{name}.yaml").write_text(text.replace(before, after, 1))
    (folder / "no-inputs.yaml").write_text("contract: 1\nname: tiny\noutputs: {y: {dtype: float32, shape: [batch]}}\n")
    (folder / "list.yaml").write_text("- contract\n")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])
    (folder / "corrupt.onnx").write_bytes(b"\xff" * 300)
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "page.onnx").write_bytes(b"<html>not found</html>")
    (folder / "checkpoint.pt").write_bytes(pickle.dumps(Marks()))
    with zipfile.ZipFile(folder / "archive.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Marks()))
    (folder / "pickled").mkdir()
    (folder / "pickled" / "config.json").write_text('{"model_type": "bert", "vocab_size": 9, "hidden_size": 4}')
    (folder / "pickled" / "pytorch_model.bin").write_bytes(pickle.dumps(Marks()))
    (folder / "nothing").mkdir()
    (folder / "a-file").write_text("in the way")
    (folder / "code.py").write_text("def other(): ...\n")
    (folder / "raises.py").write_text("def factory(): raise KeyError('weights')\n")
    (folder / "syntax.py").write_text("def factory(:\n")
    (folder / "out").mkdir()
    (folder / "out" / "tiny-7").mkdir()
    bundle = testing.tiny_bundle(folder / "bundles").root
    model = bytearray((bundle / "variants/fp32/model.onnx").read_bytes())
    model[-9] ^= 1
    (bundle / "variants/fp32/model.onnx").write_bytes(model)
    return folder


@pytest.fixture
def there(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; afterwards every file in it is as it was, and there is none besides."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", "200")
    before = snapshot(files)
    yield files
    assert snapshot(files) == before


def snapshot(folder: Path) -> dict[str, bytes]:
    found = sorted(p for p in folder.rglob("*") if "__pycache__" not in p.parts)
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in found}


def refused(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and the one message. Raises when there is not exactly one, or it comes without a fix."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(str(end.code))
    said = capfd.readouterr()
    return code, one_message(said.out, said.err)


def one_message(out: str, err: str) -> str:
    assert out == ""
    assert "Traceback" not in err
    steps, mark, message = err.partition("tauten: ")
    assert mark, err
    assert all(line.startswith(("·", "measuring", "verifying")) for line in steps.splitlines()), steps
    assert message.count("fix: ") == 1
    assert "tauten: " not in message
    assert message.partition("fix: ")[2].strip()
    return message


SOURCES = [
    ("missing.onnx", "there is no file 'missing.onnx'"),
    ("missing", "there is no file or directory 'missing'"),
    ("nothing", "'nothing' holds no model"),
    ("a-file", "not a model that any source takes"),
    ("corrupt.onnx", "not a readable ONNX model"),
    ("truncated.onnx", "not a readable ONNX model"),
    ("page.onnx", "'page.onnx'"),
    ("empty.onnx", "not an ONNX model"),
    ("missing.py:factory", "there is no file 'missing.py'"),
    ("code.py", "say which factory"),
    ("code.py:factory", "it has other"),
    ("raises.py:factory", "KeyError: 'weights'"),
    ("syntax.py:factory", "SyntaxError"),
    ("nowhere.at.all:factory", "cannot be imported"),
    ("checkpoint.pt", "was not opened: loading it would run builtins.exec"),
    ("archive.pt", "was not opened: loading it would run builtins.exec"),
    ("pickled", "its weights are pickled"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the framework, while it loads
@pytest.mark.parametrize(("source", "says"), SOURCES)
def test_a_bad_source(source: str, says: str, there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, message = refused(["build", source, "-c", "contract.yaml", "-o", "new/out"], capfd)
    assert (code, says in message) == (2, True), message
    assert not (there / "marker").exists()


VERBS = [
    ["init", "-o", "new/c.yaml"],
    ["export", "-c", "contract.yaml", "-o", "new/m.onnx"],
    ["check", "-c", "contract.yaml", "--report", "new/r.html"],
    ["ship", "-c", "contract.yaml", "--http-port", "0"],
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("source", ["missing.onnx", "truncated.onnx", "archive.pt"])
def test_every_verb_refuses_it(verb: list[str], source: str, there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, message = refused([verb[0], source, *verb[1:]], capfd)
    assert (code, source in message) == (2, True)


@pytest.mark.parametrize(
    ("contract", "says"),
    [
        ("missing", "cannot be read: No such file"),
        ("misspelt", "unknown key 'axis'; did you mean 'axes'?"),
        ("misspelt-inside", "unknown key 'opsett' at target; did you mean 'opset'?"),
        ("upside-down", "batch"),
        ("no-inputs", "key 'inputs' is missing"),
        ("no-yaml", "not valid YAML"),
        ("list", "holds list, expected a mapping"),
        ("binary", "not UTF-8 text"),
        ("twice", "key 'name' is given twice"),
        ("unknown-type", "did you mean 'int64'?"),
        ("unknown-precision", "did you mean 'float32'?"),
        ("escapes", "name '../tiny' must be letters"),
    ],
)
def test_a_bad_contract(contract: str, says: str, there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments in (["build", "tiny.onnx", "-c", f"{contract}.yaml", "-o", "new"], ["contract", "check", f"{contract}.yaml"],
                      ["verify", "http://127.0.0.1:9", "-c", f"{contract}.yaml"]):  # fmt: skip
        code, message = refused(arguments, capfd)
        assert (code, says in message) == (2, True), message


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["shipp"], "invalid choice: 'shipp'"),
        (["check", *TINY, "--jsn"], "unrecognized arguments: --jsn"),
        (["check", "tiny.onnx"], "-c/--contract"),
        (["contract", "check"], "needs a file"),
        (["build", *TINY, "-o", "new", "--version", "0"], "--version is '0'"),
        (["build", *TINY, "-o", "new", "--version", "01"], "--version is '01'"),
        (["build", *TINY, "-o", "new", "--version", "../1"], "--version is '../1'"),
        (["build", *TINY, "-o", "new", "--only-variant", "int9"], "there is no candidate 'int9'"),
        (["build", *TINY, "-o", "out", "--version", "7"], "exists already"),
        (["build", *TINY, "-o", "a-file"], "is not a directory"),
        (["export", *TINY, "-o", "nothing"], "'nothing' cannot be written"),
        (["export", *TINY, "-o", "a-file/model.onnx"], "cannot be written"),
        (["init", "tiny.onnx", "-o", "contract.yaml"], "exists already"),
        (["init", "tiny.onnx", "-o", "a-file/c.yaml"], "cannot be written"),
        (["init", "tiny.onnx", "-o", "new.yaml", "--precision", "int9"], "target.precision has 'int9'"),
        (["init", "tiny.onnx", "-o", "new.yaml", "--name", "a/b"], "name 'a/b'"),
        (["init", "tiny.onnx", "-o", "new.yaml", "--accuracy", "no.tsv"], "'no.tsv' is not a file"),
        (["init", "tiny.onnx", "-o", "new.yaml", "--max-drop", "-1"], "--max-drop is -1"),
        (["ship", *TINY, "--http-port", "70000"], "70000 is not a port"),
        (["ship", *TINY, "--http-port", "0", "--then", "no-such-program {url}"], "there is no such program"),
        (["ship", *TINY, "--http-port", "0", "--then", "echo 'open"], "cannot be read"),
        (["ship", *TINY, "--http-port", "0", "--for", "0s"], "lasts no time"),
        (["verify", "http://127.0.0.1:9"], "no contract was given"),
        (["verify", "ftp://somewhere", "-c", "contract.yaml"], "ftp://somewhere"),
        (["verify", "http://127.0.0.1:9", "--bundle", "bundles/tiny/1"], "model.onnx' has SHA-256"),
        (["bench", "bundles/tiny/1"], "model.onnx' has SHA-256"),
        (["verify", "http://[::1", "-c", "contract.yaml"], "no address of a server"),
        (["bench", "http://127.0.0.1:9", "--seed", "-1"], "'-1' is no seed"),
        (["bench", "nothing"], "manifest.json is missing"),
        (["serve", "bundles/tiny/1", "--http-port", "0", "--metrics-port", "-1"], "model.onnx' has SHA-256"),
    ],
)
def test_bad_usage(arguments: list[str], says: str, there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, message = refused(arguments, capfd)
    assert (code, says in message) == (2, True), message


def test_nobody_there_to_verify(there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    code, message = refused(["verify", f"http://127.0.0.1:{port}", "-c", "contract.yaml", "--for", "1s"], capfd)
    assert (code, "cannot be reached" in message) == (3, True)


def test_a_port_in_use_is_told_before_the_build(there: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, message = refused(["ship", *TINY, "-o", "new", "--http-port", port], capfd)
    assert (code, f"port {port}" in message) == (3, True)


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("onnx", ["check", *TINY], "onnx"),
        ("torch", ["check", "raises.py:factory", "-c", "contract.yaml"], "torch"),
        ("jinja2", ["check", *TINY, "--report", "new.html"], "report"),
        ("jinja2", ["build", *TINY, "-o", "new"], "report"),
    ],
)
def test_an_extra_that_is_not_installed(missing: str, arguments: list[str], extra: str, there: Path) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from tauten.cli.main import main; sys.exit(main({arguments!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    message = one_message(done.stdout, done.stderr)
    assert (done.returncode, f"pip install 'tauten[{extra}]'" in message) == (3, True)


SCHEMA = [sys.executable, "-m", "tauten", "contract", "schema"]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no device that is always full")
def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(SCHEMA, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, "No space left" in one_message("", done.stderr)) == (3, True)


def test_a_reader_that_left_is_not_taken_for_held() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        done = subprocess.run(SCHEMA, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, "")


def test_marks_that_the_terminal_cannot_show(there: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "tauten", "check", *TINY], capture_output=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert (done.returncode, b"?  lint" in done.stdout, b"Traceback" in done.stderr) == (0, True, False)

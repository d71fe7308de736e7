"""Results appear whole, and only files are ever replaced by them."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest

from tauten import testing
from tauten.delivery.files import write_whole
from tauten.formats import onnx_file
from tauten.spec.errors import BadUsage


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A link to a device, so that a failing test replaces the link only."""
    link = tmp_path / "device"
    link.symlink_to(os.devnull)
    return link


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    for text in (b"first", b"second"):
        write_whole(target, text)
        assert target.read_bytes() == text
    assert [p.name for p in target.parent.iterdir()] == ["report.html"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    for text in (b"first", b"second"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "real").read_bytes() == text
    assert (tmp_path / "link").is_symlink()


def test_a_device_is_written_to_and_stays_one(device: Path) -> None:
    write_whole(device, b"gone")
    assert device.is_symlink()
    assert Path(os.devnull).is_char_device()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="cannot be written"):
        write_whole(tmp_path, b"text")
    assert tmp_path.is_dir()


def test_a_model_never_takes_the_place_of_a_device(tmp_path: Path, device: Path) -> None:
    testing.write_tiny_model(tmp_path / "tiny.onnx")
    with pytest.raises(FileExistsError, match="no regular file"):
        onnx_file.save(onnx.load(tmp_path / "tiny.onnx"), device)
    assert device.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["device", "tiny.onnx"]

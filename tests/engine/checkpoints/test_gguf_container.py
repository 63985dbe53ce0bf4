from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark_cli.engine.checkpoints.gguf_container import QUANT_TYPES, read_container
from dspark_cli.errors import CheckpointError
from tests.engine.checkpoints.tiny_models import write_gguf


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def entry(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", kind, offset)


def file_of(pairs: list[bytes], entries: list[bytes], data: bytes = b"", version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(entries), len(pairs)) + b"".join(pairs) + b"".join(entries)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def refused(path: Path, content: bytes, *words: str) -> None:
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_container(path)
    for word in ("model.gguf", *words):
        assert word in str(caught.value)


def test_the_type_table_is_that_of_the_library() -> None:
    for code, kind in QUANT_TYPES.items():
        assert gguf.GGMLQuantizationType(code).name == kind.name
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(code)] == (kind.block, kind.size)
    named = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
    assert [kind.name for kind in QUANT_TYPES.values()] == named


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value_and_the_data(path: Path, version: int) -> None:
    numbers = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
    pairs = [pair(f"n{kind}", kind, struct.pack(form, 1)) for kind, form in numbers.items()]
    pairs += [
        pair("text", 8, text("zwölf ␣")),
        pair("words", 9, struct.pack("<IQ", 8, 3) + text("a") + text("") + text("ß")),
        pair("ints", 9, struct.pack("<IQ3i", 5, 3, 7, -1, 2)),
        pair("bools", 9, struct.pack("<IQ2?", 7, 2, True, False)),
        pair("nested", 9, struct.pack("<IQ", 9, 2) + struct.pack("<IQ2B", 0, 2, 1, 2) + struct.pack("<IQ", 8, 0)),
        pair("general.alignment", 4, struct.pack("<I", 32)),
    ]
    values = np.arange(6, dtype="<f4")
    path.write_bytes(file_of(pairs, [entry("w", (3, 2), 0, 32)], bytes(32) + values.tobytes(), version))
    found = read_container(path)
    for kind in numbers:
        assert found.metadata[f"n{kind}"] == 1
    assert found.metadata["n7"] is True
    assert type(found.metadata["n6"]) is float
    assert found.metadata["text"] == "zwölf ␣"
    assert found.metadata["words"] == ["a", "", "ß"]
    assert found.metadata["ints"].tolist() == [7, -1, 2]
    assert found.metadata["bools"].tolist() == [True, False]
    assert found.metadata["nested"][0].tolist() == [1, 2]
    assert found.metadata["nested"][1] == []
    info = found.tensors["w"]
    assert (info.shape, info.kind.name, info.size) == ((2, 3), "F32", 24)
    assert np.array_equal(found.raw(info).view("<f4"), values.reshape(2, 3))


def test_another_alignment(path: Path) -> None:
    keys = {"general.architecture": "llama", "general.alignment": 64}
    tensors = {"a": np.arange(3, dtype=np.float32), "b": np.arange(5, dtype=np.float32)}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_container(path)
    assert {key: found.metadata[key] for key in keys} == keys
    for name, values in tensors.items():
        assert np.array_equal(found.raw(found.tensors[name]).view("<f4")[0], values)


ONE = entry("w", (8,), 0, 0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["cut short"]),
        (b"GGU", ["cut short"]),
        (b"PK\x03\x04" * 20, ["not a GGUF file"]),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), ["big-endian"]),
        (b"GGUF" + struct.pack("<III", 1, 0, 0), ["version 1", "llama.cpp"]),
        (file_of([], [], version=4), ["version 4"]),
        (file_of([], [], version=0), ["version 0"]),
        (file_of([pair("a", 77, b"")], []), ["unknown type 77"]),
        (file_of([pair("a", 9, struct.pack("<IQ", 5, 1 << 62))], []), ["cut short"]),
        (file_of([pair("a", 9, struct.pack("<IQ", 8, 1 << 62))], []), ["cut short"]),
        (file_of([pair("a", 9, struct.pack("<IQ", 9, 1) * 400)], []), ["nested"]),
        (file_of([text("a")[:4] + b"\xff" * 4], []), ["cut short"]),
        (file_of([pair("a", 8, struct.pack("<Q", 2) + b"\xff\xfe")], []), ["damaged", "utf-8"]),
        (file_of([], [entry("w", (8,), 0, 4)], bytes(32)), ["cut short"]),
        (file_of([], [entry("w", (1 << 63, 1 << 63), 0, 0)], bytes(32)), ["cut short"]),
        (file_of([], [entry("w", (), 0, 0)], bytes(32)), ["0 dimensions"]),
        (file_of([], [entry("w", (1,) * 5, 0, 0)], bytes(32)), ["5 dimensions"]),
        (file_of([], [entry("w", (0,), 0, 0)], bytes(32)), ["[0]"]),
        (file_of([], [entry("w", (33,), 8, 0)], bytes(64)), ["[33]", "Q8_0"]),
        (file_of([], [entry("w", (256,), 10, 0)], bytes(96)), ["Q2_K", "Q4_K"]),
        (file_of([], [entry("w", (256,), 999, 0)], bytes(96)), ["unknown number 999"]),
        (file_of([], [ONE, ONE], bytes(32)), ["two tensors w"]),
        (file_of([pair("general.alignment", 4, bytes(4))], [ONE], bytes(32)), ["alignment"]),
        (file_of([pair("split.count", 2, struct.pack("<H", 3))], []), ["one part of 3", "merge"]),
    ],
)
def test_damaged_files_are_told_apart(path: Path, content: bytes, words: list[str]) -> None:
    refused(path, content, *words)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no file"):
        read_container(tmp_path / "none.gguf")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_container(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A file with a vocabulary and tensors, of which the last ends the file without padding."""
    path = tmp_path_factory.mktemp("whole") / "model.gguf"
    keys = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "bc", "d"], "x": 1.5, "y": [1, 2, 3]}
    tensors = {f"blk.{i}.w": np.zeros((4, 8 * (i + 1)), np.float32) for i in range(3)}
    content = write_gguf(path, keys, tensors).read_bytes()
    assert len(read_container(path).tensors) == 3
    return path, content


@given(share=st.floats(0, 1, exclude_max=True))
def test_any_beginning_of_a_file_is_refused(whole: tuple[Path, bytes], share: float) -> None:
    path, content = whole
    refused(path, content[: int(share * len(content))])


def test_every_beginning_of_the_header_is_refused(whole: tuple[Path, bytes]) -> None:
    path, content = whole
    for length in range(450):
        refused(path, content[:length], "cut short")


@given(position=st.integers(0, 447), byte=st.integers(0, 255))
def test_a_changed_byte_gives_a_container_or_a_plain_error(whole: tuple[Path, bytes], position: int, byte: int) -> None:
    path, content = whole
    path.write_bytes(content[:position] + bytes([byte]) + content[position + 1 :])
    with suppress(CheckpointError):
        read_container(path)

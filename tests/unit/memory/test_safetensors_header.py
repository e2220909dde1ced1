"""A header is believed only where it agrees with the file."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moesaic.core.errors import UserError
from moesaic.memory.safetensors_header import read_header
from tests.checkpoints import file_bytes, header, random_bytes

GOOD = {"a": ("BF16", (2, 3)), "b": ("F32", (4,)), "c": ("I8", ())}
SIZE = 12 + 16 + 1


def _refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_header(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_good_file_gives_every_tensor_and_its_place(tmp_path):
    path = tmp_path / "x.safetensors"
    table = header(GOOD) | {"__metadata__": {"format": "pt"}}
    path.write_bytes(file_bytes(table, random_bytes(SIZE)))
    start = len(path.read_bytes()) - SIZE
    entries = read_header(path)
    assert list(entries) == ["a", "b", "c"]
    assert (entries["b"].dtype, entries["b"].shape, entries["b"].offset) == ("F32", (4,), start + 12)
    assert entries["c"].num_bytes == 1
    assert all(e.path == path for e in entries.values())


def test_padding_behind_the_json_and_empty_tensors_are_fine(tmp_path):
    path = tmp_path / "x.safetensors"
    table = {"e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]}, **header({"a": ("F32", (1,))})}
    path.write_bytes(file_bytes(json.dumps(table).encode() + b"   ", b"1234"))
    assert read_header(path)["e"].num_bytes == 0


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda t: t["b"].update(data_offsets=[10, 26]), "overlaps a"),
        (lambda t: t["b"].update(data_offsets=[14, 30]), "gap of 2 bytes"),
        (lambda t: t["b"].update(data_offsets=[-4, 12]), "data_offsets"),
        (lambda t: t["b"].update(data_offsets=[28, 12]), "data_offsets"),
        (lambda t: t["b"].update(data_offsets=[12]), "data_offsets"),
        (lambda t: t["b"].update(data_offsets=[12.0, 28.0]), "data_offsets"),
        (lambda t: t["b"].update(data_offsets="12,28"), "data_offsets"),
        (lambda t: t["b"].update(data_offsets=[12, 2**63]), "data_offsets"),
        (lambda t: t["b"].update(shape=[5]), r"not those of F32 \[5\]"),
        (lambda t: t["b"].update(shape=[2**62, 2**62]), "not those of"),
        (lambda t: t["b"].update(shape=[-4]), "shape"),
        (lambda t: t["b"].update(shape=[True, 4]), "shape"),
        (lambda t: t["b"].update(shape=[1] * 17), "shape"),
        (lambda t: t["b"].update(shape=4), "shape"),
        (lambda t: t["b"].update(dtype="F31"), "unknown dtype F31"),
        (lambda t: t["b"].update(dtype=None), "unknown dtype"),
        (lambda t: t["b"].pop("dtype"), "must have dtype"),
        (lambda t: t["b"].update(extra=1), "must have dtype"),
        (lambda t: t.update(b=[1, 2]), "must have dtype"),
        (lambda t: t.pop("c"), "1 bytes that belong to no tensor"),
        (lambda t: t.pop("a"), "gap of 12 bytes after the header"),
        (lambda t: t.clear(), "29 bytes that belong to no tensor"),
    ],
)
def test_a_header_that_contradicts_itself_or_the_file_is_refused(tmp_path, change, word):
    table = header(GOOD)
    change(table)
    message = _refused(tmp_path / "x.safetensors", file_bytes(table, random_bytes(SIZE)))
    assert word.replace("\\", "") in message


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b'"a"',
        b"{}x",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":1,"a":2}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_a_header_that_is_no_json_object_is_refused(tmp_path, text):
    _refused(tmp_path / "x.safetensors", file_bytes(text, b""))


def test_every_truncation_is_refused(tmp_path):
    content = file_bytes(header(GOOD), random_bytes(SIZE))
    for length in range(len(content)):
        _refused(tmp_path / "x.safetensors", content[:length])


def test_trailing_bytes_are_refused(tmp_path):
    assert "belong to no tensor" in _refused(
        tmp_path / "x.safetensors", file_bytes(header(GOOD), random_bytes(SIZE + 5))
    )


@pytest.mark.parametrize("length", [2**63, 2**40, 100_000_001, 200])
def test_a_header_longer_than_the_file_is_refused_without_reading_it(tmp_path, length):
    assert "header of" in _refused(tmp_path / "x.safetensors", struct.pack("<Q", length) + b"{}")


def test_names_are_shown_on_one_line(tmp_path):
    table = {"a\nb\x1b[31m": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}
    message = _refused(tmp_path / "x.safetensors", file_bytes(table, b"123"))
    assert r"a\nb\x1b[31m" in message


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"x\.safetensors"):
        read_header(tmp_path / "x.safetensors")


def _accepted_or_refused(path, content):
    path.write_bytes(content)
    message, entries = "", {}
    try:
        entries = read_header(path)
    except UserError as error:
        message = str(error)
    assert "\n" not in message
    assert sum(e.num_bytes for e in entries.values()) <= len(content)
    assert all(e.offset >= 0 and e.offset + e.num_bytes <= len(content) for e in entries.values())


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(data=st.data())
def test_no_byte_of_a_header_gives_anything_but_a_user_error(tmp_path_factory, data):
    content = bytearray(file_bytes(header(GOOD), random_bytes(SIZE)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - SIZE))] = data.draw(st.integers(0, 255))
    _accepted_or_refused(tmp_path_factory.getbasetemp() / "fuzz.safetensors", bytes(content))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(
    name=st.text(max_size=6), dtype=JSON | st.sampled_from(["F32", "F4", "BF16"]), shape=JSON, offsets=JSON, tail=JSON
)
def test_no_json_in_a_header_gives_anything_but_a_user_error(tmp_path_factory, name, dtype, shape, offsets, tail):
    table = {name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}, "z": tail}
    _accepted_or_refused(tmp_path_factory.getbasetemp() / "fuzz.safetensors", file_bytes(table, b"0123456789"))

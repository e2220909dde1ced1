"""Tokenizer and generation defaults from a directory, whole or broken."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import pytest

from moesaic.core.errors import UserError
from moesaic.core.sampling import GenerationDefaults, SamplingParams
from moesaic.runtime.tokenizer import load_tokenizer, read_generation_defaults

TINY = Path(str(files("moesaic") / "models/data/tiny"))
Damage = Callable[[Path], None]
NAMES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name in NAMES:
        shutil.copy(TINY / name, tmp_path / name)
    return tmp_path


def write(path: Path, **values: object) -> None:
    path.write_text(json.dumps(values))


def test_text_comes_back(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode("a  b , c\n\n 🦀")) == "a  b , c\n\n 🦀"
    assert tokenizer.eos_token_id == 0
    assert {0, 1, 2} <= tokenizer.special_ids
    assert tokenizer.textless(4098) == {4096, 4097}


def test_a_conversation_is_written_by_the_template_with_no_second_beginning(directory: Path) -> None:
    tokenizer = load_tokenizer(directory)
    text = tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}]))
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    text = tokenizer.decode(tokenizer.chat([{"role": "user", "content": "hi"}], add_generation_prompt=False))
    assert text.endswith("<|im_end|>\n")


def test_templates_that_are_missing_or_raise_are_the_users_to_mend(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(UserError, match="roles must alternate"):
        load_tokenizer(directory).chat([{"role": "user", "content": "hi"}])
    (directory / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="no chat template"):
        load_tokenizer(directory).chat([{"role": "user", "content": "hi"}])


def test_lone_surrogates_are_refused(directory: Path) -> None:
    with pytest.raises(UserError, match="Unicode"):
        load_tokenizer(directory).encode("a\ud800b")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": "1.0"', b"[" * 100_000])
def test_a_broken_file_is_named_in_one_line(directory: Path, name: str, content: bytes) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(UserError, match=name) as caught:
        load_tokenizer(directory)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_of_the_wrong_shape_is_named(directory: Path) -> None:
    write(directory / "tokenizer.json", version="1.0", model={"type": "BPE", "vocab": 3})
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(directory)


def test_a_directory_without_a_tokenizer_says_so(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        load_tokenizer(directory)
    with pytest.raises(UserError, match="no directory"):
        load_tokenizer(directory / "absent")


def test_code_beside_a_tokenizer_is_not_run(directory: Path) -> None:
    marker = directory / "ran"
    (directory / "evil.py").write_text(f"open({str(marker)!r}, 'w').write('x')\nclass Evil: pass\n")
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config |= {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, "tokenizer_class": "Evil"}
    write(directory / "tokenizer_config.json", **config)
    with suppress(UserError):  # refused or read without it: both are right
        load_tokenizer(directory)
    assert not marker.exists()


def test_generation_defaults_are_read_and_every_end_token_counts(tmp_path: Path) -> None:
    write(
        tmp_path / "generation_config.json",
        do_sample=True, temperature=0.6, top_k=20, top_p=0.95, eos_token_id=[7, 9], pad_token_id=1,
    )  # fmt: skip
    defaults = read_generation_defaults(tmp_path, {"eos_token_id": 3}, tokenizer_eos=5)
    assert defaults == GenerationDefaults(True, 0.6, 20, 0.95, eos_token_ids=(7, 9, 5))


def test_without_generation_config_the_model_config_names_the_end(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path, {"eos_token_id": [3, 4]}, 3) == GenerationDefaults(eos_token_ids=(3, 4))
    assert read_generation_defaults(tmp_path, {}).eos_token_ids == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", '"hot"'), ("temperature", "-1"), ("temperature", "1e9"), ("temperature", "9" * 400),
        ("top_k", "true"), ("top_k", "2.5"), ("top_k", "1e400"), ("top_k", "-5"), ("top_p", "2"), ("top_p", "0"),
        ("min_p", "5"), ("repetition_penalty", "0"), ("repetition_penalty", "-1.5"), ("do_sample", '"yes"'),
        ("eos_token_id", '["</s>"]'), ("eos_token_id", "[0, -1]"), ("eos_token_id", "true"),
    ],
)  # fmt: skip
def test_wrong_generation_values_name_the_field_in_a_short_line(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "generation_config.json").write_text(f'{{"{name}": {value}}}')
    with pytest.raises(UserError, match=f"generation_config.json: {name}") as caught:
        read_generation_defaults(tmp_path, {})
    assert len(str(caught.value)) < 400


def test_the_end_tokens_of_config_json_are_blamed_on_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/config\.json: eos_token_id is -1"):
        read_generation_defaults(tmp_path, {"eos_token_id": -1})


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_away(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("damage", [fifo, link_away])
@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json", "tokenizer_config.json", "vocab.json", "tokenizer.model", "chat_template.jinja",
        "additional_chat_templates/tool.jinja",
    ],
)  # fmt: skip
def test_only_regular_files_of_the_checkpoint_are_opened(directory: Path, name: str, damage: Damage) -> None:
    (directory / name).parent.mkdir(exist_ok=True)
    damage(directory / name)
    with pytest.raises(UserError, match=f"{name}: is (not a regular file|a link)"):
        load_tokenizer(directory)
    damage(directory / "generation_config.json")
    with pytest.raises(UserError, match=r"generation_config\.json: is"):
        read_generation_defaults(directory, {})


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("config.json", "eos_token_id", "a"), ("config.json", "pad_token_id", "x"), ("config.json", "id2label", 5),
        ("tokenizer_config.json", "eos_token", 5), ("tokenizer_config.json", "tokenizer_class", 5),
        ("tokenizer_config.json", "model_max_length", "x"), ("tokenizer.json", "model", 3),
    ],
)  # fmt: skip
def test_a_fault_is_blamed_on_the_file_it_is_in(directory: Path, name: str, field: str, value: object) -> None:
    write(directory / name, **(json.loads((directory / name).read_text()) | {field: value}))
    with pytest.raises(UserError, match=f"{directory}/{name}: cannot be read"):
        load_tokenizer(directory)


# -- how defaults fill the gaps ------------------------------------------------------------------------------------
MODEL = GenerationDefaults(do_sample=True, temperature=0.6, top_k=20, top_p=0.9, min_p=0.1, repetition_penalty=1.1)


def filled(defaults: GenerationDefaults, **params: object) -> tuple[object, ...]:
    p = defaults.fill(SamplingParams(**params))  # type: ignore[arg-type]
    return p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty


def test_explicit_values_win_over_the_models_and_the_models_over_neutral_ones() -> None:
    assert filled(MODEL) == (0.6, 20, 0.9, 0.1, 1.1)
    assert filled(MODEL, temperature=1.0, top_k=0, top_p=1.0) == (1.0, 0, 1.0, 0.1, 1.1)
    assert filled(GenerationDefaults(do_sample=True)) == (1.0, 0, 1.0, 0.0, 1.0)


def test_without_do_sample_the_model_is_greedy_as_in_transformers() -> None:
    assert filled(GenerationDefaults(temperature=0.6, top_p=0.9, repetition_penalty=1.1)) == (0.0, 0, 1.0, 0.0, 1.1)


@pytest.mark.parametrize("asked", [{"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"seed": 1}, {"n": 2}])
def test_who_asks_for_a_draw_gets_one(asked: dict[str, object]) -> None:
    assert filled(GenerationDefaults(), **asked)[0] == 1.0
    assert filled(MODEL, **asked)[0] == 0.6

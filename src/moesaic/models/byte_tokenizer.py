"""A tokenizer that every loader accepts and any text passes: one token per byte, no merges, one special token.

It serves checkpoints of random weights, whose text means nothing anyway.
"""

from __future__ import annotations

from typing import Any

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0
NUM_TOKENS = 257  # the special token, then the 256 bytes in order

# bytes whose own character is printable, as GPT-2's byte-level alphabet has them
_PRINTABLE = (range(33, 127), range(161, 173), range(174, 256))


def byte_alphabet() -> list[str]:
    """The character that stands for each byte: its own where that is printable, else one past U+0100."""
    printable = {byte for span in _PRINTABLE for byte in span}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def tokenizer_json() -> dict[str, Any]:
    """The content of tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {
        "id": END_OF_TEXT_ID,
        "content": END_OF_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    vocabulary = {END_OF_TEXT: END_OF_TEXT_ID} | {char: i + 1 for i, char in enumerate(byte_alphabet())}
    model: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "post_processor": None,
        "added_tokens": [special],
        "model": model,
    }


def tokenizer_config_json() -> dict[str, Any]:
    """The content of tokenizer_config.json: the special token in all roles, messages one per line."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['content'] }}\n{% endfor %}",
    }

"""The byte tokenizer loads in transformers and gives any text back."""

import json

from transformers import AutoTokenizer

from moesaic.models.byte_tokenizer import END_OF_TEXT_ID, NUM_TOKENS, tokenizer_config_json, tokenizer_json


def test_any_text_comes_back_and_bytes_are_ids(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config_json()))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "def f(x):\n\t# naïve 漢字 😀\r\n" + "".join(map(chr, range(1, 128)))
    ids = tokenizer.encode(text)
    assert sorted(ids) == sorted(byte + 1 for byte in text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == NUM_TOKENS
    assert tokenizer.eos_token_id == END_OF_TEXT_ID

"""The verb writes a checkpoint and says what it wrote; faults are one line."""

import json

from typer.testing import CliRunner

from moesaic.bench import make_checkpoint
from moesaic.cli.verbs import app
from moesaic.memory.checkpoint import open_checkpoint
from moesaic.models import noise


def test_json_says_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(noise.NoiseShape.__init__, "__defaults__", (0, 0.3, 0.5, 40_009))
    monkeypatch.setattr(make_checkpoint, "STEP_ELEMENTS", 40_000)
    result = CliRunner().invoke(
        app, ["make-checkpoint", "qwen3-tiny", str(tmp_path / "m"), "--layers", "1", "--seed", "3", "--json"]
    )
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert (summary["preset"], summary["num_layers"], summary["seed"], summary["num_shards"]) == ("qwen3-tiny", 1, 3, 1)
    entries = open_checkpoint(tmp_path / "m").entries.values()
    assert summary["num_bytes"] == sum(e.num_bytes for e in entries)


def test_an_unknown_preset_lists_the_known_ones(tmp_path):
    result = CliRunner().invoke(app, ["make-checkpoint", "gpt", str(tmp_path / "m")])
    assert "known: cpu-mid" in str(result.exception)
    assert not (tmp_path / "m").exists()

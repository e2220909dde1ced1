"""`moesaic make-checkpoint`: random weights of a published geometry, to measure speed and memory with."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from moesaic.bench.presets import PRESETS, geometry_of
from moesaic.core.units import format_bytes, format_rate


def run(
    preset: Annotated[str, typer.Argument(help=f"One of: {', '.join(PRESETS)}.")],
    directory: Annotated[Path, typer.Argument(help="Where to write; empty or not there yet.", metavar="DIR")],
    layers: Annotated[int | None, typer.Option(help="Layers to write (default: the preset's).")] = None,
    vocab: Annotated[int | None, typer.Option(help="Vocabulary (default: the preset's).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a checkpoint that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Write a checkpoint of random weights with a published model's geometry.

    Its text is noise, its routing is skewed like a model's: it serves to measure speed and memory.
    """
    geometry = geometry_of(preset, layers, vocab)
    from moesaic.bench.make_checkpoint import make_checkpoint

    start_s = time.perf_counter()
    progress = _show if sys.stderr.isatty() and not as_json else None
    written = make_checkpoint(directory, geometry, seed, force=force, progress=progress)
    seconds = time.perf_counter() - start_s
    if as_json:
        summary = {
            "directory": str(directory),
            "preset": preset,
            "num_layers": geometry.num_layers,
            "seed": seed,
            "num_bytes": written.num_bytes,
            "expert_bytes": written.expert_bytes,
            "num_shards": written.num_shards,
            "seconds": seconds,
        }
        typer.echo(json.dumps(summary))
        return
    typer.echo(
        f"{directory}: {format_bytes(written.num_bytes)} in {written.num_shards} files, of it "
        f"{format_bytes(written.expert_bytes)} experts, {seconds:.1f} s ({format_rate(written.num_bytes / seconds)})"
    )


def _show(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{format_bytes(done)} of {format_bytes(total)}", end=end, file=sys.stderr, flush=True)

"""`moesaic demo`: the embedded model writes text with room for 40 % of its experts, and shows what that took."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from moesaic.api import LLM
    from moesaic.core.sampling import SamplingParams
    from moesaic.runtime.outputs import RequestOutput
    from moesaic.runtime.stats import EngineStats

EXPERT_MEMORY = "40%"
# the embedded model was trained on technical English and code: this is what it continues best
PROMPT = 'def read_file(path):\n    """'


def run(
    prompt: Annotated[str, typer.Option(help="What the model continues.")] = PROMPT,
    max_tokens: Annotated[int, typer.Option(min=1, max=960, help="Tokens to write.")] = 96,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Write text with the embedded model, its experts in a device budget of 40 % of their size."""
    from moesaic.cli.prompts import check_prompts
    from moesaic.core.sampling import SamplingParams
    from moesaic.runtime.options import EngineOptions

    params = SamplingParams(temperature=0.0, repetition_penalty=1.15, max_tokens=max_tokens)
    engine: dict[str, Any] = {"dtype": "float32", "expert_memory": EXPERT_MEMORY, "max_num_seqs": 1}
    model = str(embedded_model())
    check_prompts(EngineOptions(model, **engine), [prompt], params)
    from moesaic.api import LLM

    with LLM(model, **engine) as llm:
        if not as_json:
            _introduce(llm)
        write = _nothing if as_json else _to_terminal
        write(prompt)
        last, seconds = _stream(llm, prompt, params, write)
        stats, output = llm.stats(), last.outputs[0]
        if as_json:
            run = {"prompt": prompt, "text": output.text, "num_tokens": len(output.token_ids), "seconds": seconds}
            typer.echo(json.dumps({**run, "expert_memory": EXPERT_MEMORY, "stats": stats.to_json()}))
        else:
            _conclude(stats)


def embedded_model() -> Any:
    """The folder of the checkpoint that the package carries."""
    from importlib.resources import files

    return files("moesaic") / "models" / "data" / "tiny"


def _stream(llm: LLM, prompt: str, params: SamplingParams, write: Callable[[str], None]) -> tuple[RequestOutput, float]:
    last, start_s = None, time.perf_counter()
    for last in llm.stream(prompt, params):
        write(last.outputs[0].delta)
    assert last is not None, "a request gives at least one output"
    return last, time.perf_counter() - start_s


def _introduce(llm: LLM) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]moesaic demo[/]: a small Mixtral, room on the device for {EXPERT_MEMORY} of its experts.")
    if llm.engine.parts.device.type == "cpu":
        console.print('[dim]No NVIDIA GPU is used: the "device" is a pool of host memory of that size.[/]')
    console.print()


def _conclude(stats: EngineStats) -> None:
    from rich.console import Console

    from moesaic.core.units import format_bytes
    from moesaic.observe.report import expert_grid

    rate, hit_rate = stats.decode_tokens_per_s, stats.hit_rate
    moved = ", ".join(f"{_PATHS.get(path, path)} {format_bytes(n)}" for path, n in stats.bytes_by_path.items() if n)
    console = Console(highlight=False)
    console.print("\n")
    if rate is not None:
        console.print(f"{rate:,.1f} tokens/s", style="bold")
    if hit_rate is not None:
        total = stats.hits + stats.misses
        console.print(f"expert hit rate {hit_rate:.1%} ({stats.hits:,} of {total:,} were on the device)")
    console.print(f"bytes moved: {moved or 'none'}", soft_wrap=True)
    console.print("where each expert lives now, layers x experts:")
    layers = [expert.layer for expert in stats.residency]
    experts = [expert.expert for expert in stats.residency]
    console.print(
        expert_grid(stats.residency, max(layers) + 1, max(experts) + 1, console.width, sys.stdout.encoding or "ascii")
    )


_PATHS = {"h2d": "host to device", "d2h": "device to host", "host_read": "read by the CPU"}


def _to_terminal(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _nothing(text: str) -> None:
    return None

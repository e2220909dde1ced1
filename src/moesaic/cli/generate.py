"""`moesaic generate MODEL -p TEXT`: writes text; the plan it runs by and the figures of the run go to stderr."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moesaic.cli.flags import flags_from
from moesaic.cli.prompts import check_prompts, read_prompts
from moesaic.core.sampling import SamplingParams
from moesaic.core.units import format_bytes
from moesaic.runtime.options import EngineOptions

if TYPE_CHECKING:
    from moesaic.api import LLM, CompletionOutput, RequestOutput

FAILED = 1  # exit code where a request ended with an error


@flags_from(sampling=SamplingParams, engine=EngineOptions)
def run(
    model: Annotated[str, typer.Argument(help="A model directory, or a hub id in the hub cache.")],
    *,
    sampling: Mapping[str, Any],
    engine: Mapping[str, Any],
    prompt: Annotated[
        list[str] | None, typer.Option("-p", "--prompt", help="What to continue (repeatable); - reads stdin.")
    ] = None,
    prompt_file: Annotated[
        list[str] | None, typer.Option("--prompt-file", help="A file that holds one prompt (repeatable); - is stdin.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Continue one or more prompts with a mixture-of-experts model."""
    params = SamplingParams(**sampling)
    options = EngineOptions(model, **engine)  # a wrong value is refused before stdin is read
    prompts = read_prompts(prompt or [], prompt_file or [])
    check_prompts(options, prompts, params)
    from moesaic.api import LLM

    with LLM(model, **engine) as llm:
        if as_json:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            typer.echo(json.dumps(summary(llm, outputs), allow_nan=False))
        else:
            outputs = _write(llm, prompts, params)
        failed = _report_failures(outputs)
    if engine["trace"] and not as_json:
        typer.echo(f"timeline: {engine['trace']}", err=True)
    if failed:
        raise typer.Exit(FAILED)


# -- as text -----------------------------------------------------------------------------------------------------
def _write(llm: LLM, prompts: Sequence[str], params: SamplingParams) -> list[RequestOutput]:
    """Text to stdout (as it comes where there is one output), plan and footer to stderr."""
    plan = llm.engine.parts.plan
    for line in plan.lines() if plan is not None else ():
        typer.echo(line, err=True)
    start_s = time.perf_counter()
    if len(prompts) == 1 and params.n == 1:
        outputs = [_stream(llm, prompts[0], params)]
    else:
        outputs = llm.generate(prompts, params)
        for number, output in enumerate(outputs):
            for completion in output.outputs:
                typer.echo(f"--- prompt {number}" + (f", output {completion.index}" if params.n > 1 else ""))
                typer.echo(completion.text)
    typer.echo(_footer(llm, outputs, time.perf_counter() - start_s), err=True)
    return outputs


def _stream(llm: LLM, prompt: str, params: SamplingParams) -> RequestOutput:
    last: RequestOutput | None = None
    for last in llm.stream(prompt, params):
        if last.outputs[0].delta:
            typer.echo(last.outputs[0].delta, nl=False)
            sys.stdout.flush()
    assert last is not None, "a request gives at least one output"
    typer.echo()
    return last


def _footer(llm: LLM, outputs: Sequence[RequestOutput], seconds: float) -> str:
    stats = llm.stats()
    tokens = sum(len(c.token_ids) for output in outputs for c in output.outputs)
    reasons = sorted({c.finish_reason or "" for output in outputs for c in output.outputs})
    parts = [f"{tokens} tokens in {seconds:.1f} s", f"ended by {', '.join(reasons)}"]
    if stats.prefill_tokens_per_s is not None:
        parts.append(f"prefill {stats.prefill_tokens_per_s:.1f} tokens/s")
    if stats.decode_tokens_per_s is not None:
        parts.append(f"decode {stats.decode_tokens_per_s:.1f} tokens/s")
    if stats.hit_rate is not None:
        parts.append(f"expert hits {stats.hit_rate:.1%}")
    parts += [f"{path} {format_bytes(num_bytes)}" for path, num_bytes in stats.bytes_by_path.items() if num_bytes]
    return " | ".join(parts)


def _report_failures(outputs: Sequence[RequestOutput]) -> bool:
    failed = [(o, c) for o in outputs for c in o.outputs if c.finish_reason == "error"]
    for output, completion in failed:
        typer.echo(f"moesaic: request {output.request_id} failed: {completion.error}", err=True)
    return bool(failed)


# -- as JSON -----------------------------------------------------------------------------------------------------
def summary(llm: LLM, outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """Plan, outputs and statistics as plain JSON values."""
    plan = llm.engine.parts.plan
    return {
        "plan": list(plan.lines()) if plan is not None else [],
        "outputs": [
            {
                "prompt": output.prompt,
                "prompt_token_ids": output.prompt_token_ids,
                "prompt_logprobs": _logprobs(output.prompt_logprobs),
                "outputs": [_completion(completion) for completion in output.outputs],
            }
            for output in outputs
        ],
        "stats": llm.stats().to_json(),
    }


def _completion(completion: CompletionOutput) -> dict[str, Any]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
        "cumulative_logprob": _finite(completion.cumulative_logprob),
        "logprobs": _logprobs(completion.logprobs),
        "error": completion.error,
    }


def _logprobs(entries: Sequence[Mapping[int, Any] | None] | None) -> list[Any] | None:
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {str(token): {**lp._asdict(), "logprob": _finite(lp.logprob)} for token, lp in entry.items()}
        for entry in entries
    ]


def _finite(value: float | None) -> float | None:
    """JSON has no infinity: a token that was ruled out has no log-probability there."""
    return value if value is not None and math.isfinite(value) else None

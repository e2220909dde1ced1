"""The Python interface: `LLM(...).generate(prompts, params)`, `.stream`, `.chat`; names as in vLLM, so that a script
ports by changing its import."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from types import TracebackType
from typing import Any, Protocol

from moesaic.core.arguments import as_list, shown, token_ids, whole
from moesaic.core.errors import UserError
from moesaic.core.sampling import SamplingParams
from moesaic.runtime.engine import Engine
from moesaic.runtime.options import EngineOptions
from moesaic.runtime.outputs import CompletionOutput, Logprob, RequestOutput
from moesaic.runtime.stats import EngineStats
from moesaic.runtime.tokenizer import Message, Tokenizer

__all__ = ["LLM", "CompletionOutput", "EngineOptions", "Logprob", "RequestOutput", "SamplingParams"]

# text, token ids (also a 1-D array or tensor), {"prompt": ...} or {"prompt_token_ids": ...}
Prompt = str | Sequence[int] | Mapping[str, Any]


class LLM:
    """A model that generates. Use it in a `with` block, or `close()` it.

    `model` is a local directory or a hub id in the hub cache; the other options are those of `EngineOptions`, and an
    unknown one is an error. Results come back for every prompt: a request that failed has finish_reason "error" and
    says why in `outputs[i].error`; the others are not touched by it.
    """

    def __init__(self, model: str | PathLike[str], **options: Any) -> None:
        from moesaic.runtime.build import build_engine

        self.engine: Engine = build_engine(EngineOptions(model, **options))  # type: ignore[arg-type]
        self._inbox: dict[str, deque[RequestOutput]] = {}
        self._num_requests = 0

    @classmethod
    def over(cls, engine: Engine) -> LLM:
        """An LLM over an engine that is already built; it closes that engine."""
        llm = cls.__new__(cls)
        llm.engine, llm._inbox, llm._num_requests = engine, {}, 0
        return llm

    # -- generation ----------------------------------------------------------------------------------------------
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Finished outputs in the prompts' order. One SamplingParams for all, or one a prompt.

        UserError where a prompt can never run: nothing has been generated then. `use_tqdm` shows progress on an
        interactive stderr.
        """
        several = _as_list(prompts)
        params = _one_each(sampling_params, len(several))
        ids = self._add_all(several, params)
        done: dict[str, RequestOutput] = {}
        try:
            with _progress(len(ids), use_tqdm) as progress:
                while len(done) < len(ids):
                    for output in self._step(ids):
                        if output.finished:
                            done[output.request_id] = output
                            progress.advance(sum(len(o.token_ids) for o in output.outputs))
        finally:
            self._abort(ids)
        return [done[request_id] for request_id in ids]

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """The request's state after each token: `outputs[i].text` grows, `outputs[i].delta` is what is new.

        The request is checked and queued at the call, and aborted when the iterator is closed early.
        """
        return _Stream(self, self._add_all([prompt], _one_each(sampling_params, 1)))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """`generate` on one conversation or several, through the model's chat template."""
        tokenizer = self._tokenizer()
        prompts = [tokenizer.chat(conversation, **template_options) for conversation in _conversations(messages)]
        return self.generate(prompts, sampling_params, use_tqdm)

    # -- the rest ------------------------------------------------------------------------------------------------
    def get_tokenizer(self) -> Any:
        """transformers' own tokenizer object."""
        tokenizer = self._tokenizer()
        return getattr(tokenizer, "hf", tokenizer)

    def stats(self) -> EngineStats:
        """Tokens, seconds, experts and bytes since the engine was built."""
        return self.engine.stats()

    def close(self) -> None:
        """Ends what runs and gives memory back. Twice does nothing more."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _tokenizer(self) -> Tokenizer:
        tokenizer = self.engine.parts.tokenizer
        if tokenizer is None:
            raise UserError("the model has no tokenizer", "give token ids to generate()")
        return tokenizer

    def _add_all(self, prompts: Sequence[Prompt], params: Sequence[SamplingParams | None]) -> list[str]:
        """Queues all prompts or none."""
        ids: list[str] = []
        try:
            for i, (prompt, own) in enumerate(zip(prompts, params, strict=True)):
                request_id = str(self._num_requests)
                try:
                    self.engine.add_request(request_id, _prompt(prompt), own)
                except UserError as error:
                    if len(prompts) == 1:
                        raise
                    raise UserError(f"prompt {i}: {error.what}", error.fix) from error
                self._num_requests += 1
                self._inbox[request_id] = deque()
                ids.append(request_id)
        except BaseException:
            self._abort(ids)
            raise
        return ids

    def _step(self, ids: Sequence[str]) -> list[RequestOutput]:
        """One engine step if need be, and what has come for `ids`. Outputs of other calls wait for those calls, so
        streams may be read side by side."""
        if not any(self._inbox[request_id] for request_id in ids):
            for output in self.engine.step():
                if output.request_id in self._inbox:
                    self._inbox[output.request_id].append(output)
        come = [output for request_id in ids for output in self._inbox[request_id]]
        for request_id in ids:
            self._inbox[request_id].clear()
        return come

    def _abort(self, ids: Sequence[str]) -> None:
        """Ends what still runs of `ids` and forgets them."""
        for request_id in ids:
            self.engine.abort(request_id)
            self._inbox.pop(request_id, None)


class _Stream(Iterator[RequestOutput]):
    """The outputs of one request as they come; UserError where it was ended from elsewhere. Closed, dropped or read to
    its end, it ends the request: also when nobody ever read from it, which a generator function would not notice."""

    def __init__(self, llm: LLM, ids: list[str]) -> None:
        self._llm, self._ids = llm, ids
        self._come: deque[RequestOutput] = deque()
        self._finished = False

    def __next__(self) -> RequestOutput:
        if self._finished:
            raise StopIteration
        try:
            while not self._come:
                self._come.extend(self._llm._step(self._ids))
                if not self._come and not self._llm.engine.has_unfinished():
                    raise UserError("the stream's request was aborted", "call stream() again")
        except BaseException:
            self.close()
            raise
        output = self._come.popleft()
        if output.finished:
            self.close()
        return output

    def close(self) -> None:
        if not self._finished:
            self._finished = True
            self._llm._abort(self._ids)

    def __del__(self) -> None:
        self.close()


# -- arguments ---------------------------------------------------------------------------------------------------
def _as_list(prompts: Any) -> list[Any]:
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    several = None if isinstance(prompts, (bytes, bytearray)) else as_list(prompts)
    if several is None:
        raise UserError(f"prompts is {shown(prompts)}", "give text, token ids, or a list of such prompts")
    if several and whole(several[0]) is not None:
        return [several]  # the ids of one prompt
    return several


def _one_each(params: Any, count: int) -> list[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(p is None or isinstance(p, SamplingParams) for p in params):
        raise UserError(f"sampling_params is {shown(params)}", "give SamplingParams(...), or a list of them")
    if len(params) != count:
        raise UserError(f"{count} prompts and {len(params)} sampling_params", "give one for all, or one a prompt")
    return list(params)


def _prompt(prompt: Any) -> str | list[int]:
    """A prompt as text or token ids."""
    if isinstance(prompt, Mapping):
        if "prompt_token_ids" in prompt:
            prompt = prompt["prompt_token_ids"]
        elif isinstance(prompt.get("prompt"), str):
            return str(prompt["prompt"])
        else:
            raise UserError(f"a prompt has the keys {shown(list(prompt))}", "give prompt or prompt_token_ids")
    elif isinstance(prompt, str):
        return prompt
    ids = token_ids(prompt)
    if ids is None:
        raise UserError(f"the prompt is {shown(prompt)}", "give text, or a list of token ids")
    return ids


def _conversations(messages: Any) -> list[list[Message]]:
    """One conversation or several, each message checked."""
    several = None if isinstance(messages, (str, bytes, Mapping)) else as_list(messages)
    if several is None:
        raise UserError(f"messages is {shown(messages)}", 'give a list such as [{"role": "user", "content": "Hello"}]')
    conversations = [several] if several and isinstance(several[0], Mapping) else several
    for conversation in conversations:
        for message in conversation if isinstance(conversation, (list, tuple)) else [conversation]:
            if not (
                isinstance(message, Mapping)
                and isinstance(message.get("role"), str)
                and isinstance(message.get("content"), (str, list, tuple, type(None)))
            ):
                raise UserError(f"a message is {shown(message)}", 'give {"role": ..., "content": ...}, a text each')
    return [list(conversation) for conversation in conversations]


# -- progress ----------------------------------------------------------------------------------------------------
class _Progress(Protocol):
    def advance(self, num_tokens: int) -> None: ...


class _Silent:
    def advance(self, num_tokens: int) -> None:
        return None


def _progress(num_prompts: int, wanted: bool) -> AbstractContextManager[_Progress]:
    """A bar on stderr where somebody watches it."""
    return _Bar(num_prompts) if wanted and sys.stderr.isatty() else nullcontext(_Silent())


class _Bar:
    def __init__(self, num_prompts: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("prompts", total=num_prompts, tokens=0)
        self._tokens = 0

    def __enter__(self) -> _Bar:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def advance(self, num_tokens: int) -> None:
        self._tokens += num_tokens
        self._bar.update(self._task, advance=1, tokens=self._tokens)

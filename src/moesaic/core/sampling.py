"""How one request's tokens are chosen; names and meaning as in vLLM. How a model's own defaults fill the gaps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moesaic.core.arguments import as_list, names_checked, number, shown, token_ids, whole
from moesaic.core.errors import UserError

GREEDY_BELOW = 1e-5  # a temperature under this one is greedy, as in vLLM


MAX_BIAS = 100.0  # of logit_bias, as in vLLM: all but forbids or forces a token

# Names that scripts written for other engines pass.
_ELSEWHERE = {
    "best_of": "ask for n outputs and choose among them",
    "max_new_tokens": "it is called max_tokens here",
    "do_sample": "temperature says it: 0 is greedy",
    "use_beam_search": "this version has no beam search",
    "length_penalty": "this version has no beam search",
    "guided_decoding": "this version has no structured output",
    "structured_outputs": "this version has no structured output",
    "allowed_token_ids": "logit_bias makes single tokens likelier or rarer",
    "bad_words": "logit_bias makes single tokens likelier or rarer",
    "logits_processors": "logit_bias makes single tokens likelier or rarer",
}


@names_checked("sampling parameter", _ELSEWHERE)
@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters of one request.

    `None` for temperature, top_k, top_p, min_p or repetition_penalty means: what the model's generation_config.json
    says, else the neutral value (see `GenerationDefaults.fill`). Order of work: logit_bias, repetition_penalty (over
    prompt and output), frequency and presence penalty (over the output), min_tokens (end tokens are masked),
    temperature, top_k, top_p, min_p. Log-probabilities are those of the raw logits.
    """

    n: int = field(default=1, metadata={"help": "Independent continuations of each prompt."})
    temperature: float | None = field(default=None, metadata={"help": "Randomness; 0 is greedy."})
    top_k: int | None = field(default=None, metadata={"help": "Draw from this many likeliest tokens; 0 or -1: all."})
    top_p: float | None = field(
        default=None, metadata={"help": "Draw from the fewest likeliest tokens that hold this probability."}
    )
    min_p: float | None = field(
        default=None, metadata={"help": "Leave out tokens below this share of the likeliest one's probability."}
    )
    repetition_penalty: float | None = field(
        default=None, metadata={"help": "Above 1: tokens of the prompt and the output get less likely."}
    )
    presence_penalty: float = field(default=0.0, metadata={"help": "Taken off the logits of tokens already written."})
    frequency_penalty: float = field(default=0.0, metadata={"help": "The same, once for each time it was written."})
    seed: int | None = field(default=None, metadata={"help": "Makes the draws reproducible, whatever else runs."})
    max_tokens: int | None = field(  # None: up to the context's end
        default=16, metadata={"help": "Tokens to write at most.", "cli_default": 256}
    )
    min_tokens: int = field(default=0, metadata={"help": "Tokens to write before an end is allowed."})
    stop: str | tuple[str, ...] | list[str] | None = field(
        default=None, metadata={"help": "End where this text appears (repeatable)."}
    )
    stop_token_ids: tuple[int, ...] | list[int] | None = field(
        default=None, metadata={"help": "End at this token id (repeatable)."}
    )
    include_stop_str_in_output: bool = field(default=False, metadata={"help": "Keep the stop text in the output."})
    ignore_eos: bool = field(default=False, metadata={"help": "Write on after the model's end token."})
    logprobs: int | None = field(
        default=None, metadata={"help": "Log-probabilities of this many likeliest tokens, and of the chosen one."}
    )
    prompt_logprobs: int | None = field(default=None, metadata={"help": "The same for the prompt's tokens."})
    logit_bias: Mapping[int, float] | None = None
    skip_special_tokens: bool = field(default=True, metadata={"help": "Leave special tokens out of the text."})
    detokenize: bool = True

    def __post_init__(self) -> None:
        for name in _RANGES:
            value = getattr(self, name)
            if value is not None or name not in _OPEN:
                self._keep(name, checked_number(name, value))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"sampling parameter {name} is {shown(getattr(self, name))}", "give True or False")
        self._check_stops()
        if self.logit_bias is not None:
            self._keep("logit_bias", _checked_bias(self.logit_bias))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UserError(f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}", "lower min_tokens")
        if self.n > 1 and self.temperature is not None and self.temperature < GREEDY_BELOW:
            raise UserError(f"n is {self.n} with temperature 0", "greedy outputs are all equal: set n=1")

    def _keep(self, name: str, value: object) -> None:
        """The same value in plain Python types, so that numpy's end here."""
        object.__setattr__(self, name, value)

    def _check_stops(self) -> None:
        if self.stop is not None and not isinstance(self.stop, str):
            texts = None if isinstance(self.stop, (bytes, Mapping)) else as_list(self.stop)
            if texts is None:
                raise UserError(f"stop is {shown(self.stop)}", "give a text, or a list of texts")
            self._keep("stop", tuple(texts))
        if any(not isinstance(s, str) or not s for s in self.stop_strings):
            raise UserError("stop holds an empty text or something else than text", "leave it out")
        if self.stop_strings and not self.detokenize:
            raise UserError("stop needs the text, and detokenize is False", "use stop_token_ids")
        if self.stop_token_ids is not None:
            ids = token_ids(self.stop_token_ids)
            if ids is None or any(i < 0 for i in ids):
                raise UserError(f"stop_token_ids is {shown(self.stop_token_ids)}", "give a list of ids, from 0 on")
            self._keep("stop_token_ids", tuple(ids))

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        """True where no draw is made. Only of params that went through `GenerationDefaults.fill`."""
        assert self.temperature is not None, "not filled"
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a checkpoint's generation_config.json says: values it does not hold are None."""

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    eos_token_ids: tuple[int, ...] = ()

    def fill(self, params: SamplingParams) -> SamplingParams:
        """`params` without gaps. Explicit values win, then generation_config.json's, then the neutral ones.

        A temperature left open is transformers' choice: the model's temperature (1.0 where it names none) with
        `do_sample: true`, greedy otherwise. Whoever asks for what only draws can give (top_k, top_p, min_p, seed,
        n > 1) means to draw: at 1.0 where the model would be greedy. vLLM would draw at 1.0 in every open case.
        """
        draws = params.n > 1 or any(v is not None for v in (params.top_k, params.top_p, params.min_p, params.seed))
        if self.do_sample:
            temperature = _first(self.temperature, 1.0)
        else:
            temperature = 1.0 if draws else 0.0
        # the model's own cuts belong to its own way of drawing: do_sample false switches them off as in transformers
        own = self if self.do_sample else GenerationDefaults()
        return replace(
            params,
            temperature=_first(params.temperature, temperature),
            top_k=int(_first(params.top_k, own.top_k, 0)),
            top_p=_first(params.top_p, own.top_p, 1.0),
            min_p=_first(params.min_p, own.min_p, 0.0),
            repetition_penalty=_first(params.repetition_penalty, self.repetition_penalty, 1.0),
        )


def _first(*values: float | None) -> float:
    return next(v for v in values if v is not None)


# name -> least and most; what is in _OPEN may be None
_RANGES: Mapping[str, tuple[float, float]] = {
    "n": (1, 128),
    "temperature": (0.0, 100.0),
    "top_k": (-1, 1 << 31),
    "top_p": (1e-9, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-(1 << 63), (1 << 64) - 1),
    "max_tokens": (1, 1 << 31),
    "min_tokens": (0, 1 << 31),
    "logprobs": (0, 100),
    "prompt_logprobs": (0, 100),
}
_WHOLE = frozenset({"n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"})
_OPEN = frozenset(_RANGES) - {"n", "presence_penalty", "frequency_penalty", "min_tokens"}
_SWITCHES = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")


def checked_number(name: str, value: object, where: str = "sampling parameter") -> int | float:
    """The sampling parameter `name` as a plain number. UserError, beginning with `where`, for what it cannot be."""
    plain = whole(value) if name in _WHOLE else number(value)
    if plain is None:
        raise UserError(f"{where} {name} is {shown(value)}", f"give a {'whole ' * (name in _WHOLE)}number")
    low, high = _RANGES[name]
    # written so that NaN, which fails every comparison, is refused too
    if not low <= plain <= high:
        raise UserError(f"{where} {name} is {shown(value)}", f"give a value from {low} to {high}")
    return plain


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise UserError(f"logit_bias is {shown(bias)}", "give token ids with numbers, such as {11: -5.0}")
    plain = {}
    for key, value in bias.items():
        token, amount = whole(key), number(value)
        if token is None or amount is None or not -MAX_BIAS <= amount <= MAX_BIAS:
            raise UserError(
                f"logit_bias has {shown(key)}: {shown(value)}", f"give token ids with numbers from -{MAX_BIAS:g} to 100"
            )
        plain[token] = float(amount)
    return plain

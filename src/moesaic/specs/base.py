"""What the families share: typed reading of config.json, and the tensors that every Llama-like decoder has.

A missing geometry or router key is an error, never a default: class defaults are not the published models.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from moesaic.core.errors import UserError
from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec, TensorSpec
from moesaic.core.routing import ExpertId

MAX_COUNT = 2**31 - 1
MAX_LAYERS = 4096
MAX_EXPERTS = 2**16  # of all layers together: bounds what a hostile config.json can make us enumerate

ACTIVATIONS = ("silu", "gelu", "relu")  # those that the expert kernels compute
DTYPES = ("bfloat16", "float16", "float32")

_RESTORE = "take the value from the published config.json, moesaic guesses no geometry"


@dataclass(frozen=True, slots=True)
class Fields:
    """config.json, read key by key. Every fault is a UserError that names the key; `None` counts as absent only
    where a default is given."""

    config: Mapping[str, object]

    def fault(self, key: str, problem: str, fix: str = _RESTORE) -> UserError:
        return UserError(f"config.json: {key} {problem}", fix)

    def raw(self, *keys: str) -> object:
        """The first of `keys` (aliases of one field) that is there."""
        for key in keys:
            if key in self.config:
                return self.config[key]
        raise self.fault(keys[0], "is missing" + (f" (also known as {', '.join(keys[1:])})" if keys[1:] else ""))

    def count(self, *keys: str, maximum: int = MAX_COUNT) -> int:
        """A whole number from 1 to `maximum`. Aliases that contradict each other are refused."""
        value = self.raw(*keys)
        key = next(k for k in keys if k in self.config)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(key, f"is {_short(value)}, not a whole number")
        if not 1 <= value <= maximum:
            raise self.fault(key, f"is {_short(value)}, not from 1 to {maximum}")
        for other in keys:
            if other in self.config and self.config[other] != value:
                raise self.fault(other, f"is {_short(self.config[other])} but {key} is {value}", "keep one of the two")
        return value

    def optional_count(self, key: str) -> int | None:
        return None if self.config.get(key) is None else self.count(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        if default is not None and self.config.get(key) is None:
            return default
        return self.positive(key, self.raw(key))

    def positive(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fault(key, f"is {_short(value)}, not a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number > 0):
            raise self.fault(key, f"is {_short(value)}, not a finite number above 0")
        return number

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.config.get(key) if default is not None else self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, bool):
            raise self.fault(key, f"is {_short(value)}, not true or false")
        return value

    def text(self, key: str) -> str:
        value = self.raw(key)
        if not isinstance(value, str):
            raise self.fault(key, f"is {_short(value)}, not a string")
        return value

    def table(self, key: str) -> Mapping[str, object]:
        """A nested object; empty where absent or null."""
        value = self.config.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fault(key, f"is {_short(value)}, not an object")
        return value


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a number of more than 20 digits"  # Python refuses to print very long ones
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- fields that every family has ----------------------------------------------------------------------------
def rope_theta(fields: Fields) -> float:
    """The base of the rotary embedding: `rope_theta`, or `rope_parameters.rope_theta` as newer files write it.
    A rope type other than the default is refused by name."""
    for key in ("rope_parameters", "rope_scaling"):
        table = fields.table(key)
        for kind in ("rope_type", "type"):
            rope_type = table.get(kind)
            if rope_type not in ("default", None):
                problem = f"is {_short(rope_type)}"
                raise fields.fault(f"{key}.{kind}", problem, "only the default rotary embedding is supported")
        if table.get("partial_rotary_factor", 1.0) not in (1, None):
            raise fields.fault(f"{key}.partial_rotary_factor", "is not 1", "partial rotary embedding is not supported")
    nested = fields.table("rope_parameters").get("rope_theta")
    outer = fields.config.get("rope_theta")
    if nested is None and outer is None:
        raise fields.fault("rope_theta", "is missing (also known as rope_parameters.rope_theta)")
    if nested is None:
        return fields.positive("rope_theta", outer)
    theta = fields.positive("rope_parameters.rope_theta", nested)
    if outer is not None and fields.positive("rope_theta", outer) != theta:
        raise fields.fault(
            "rope_theta", f"is {outer} but rope_parameters.rope_theta is {nested}", "keep one of the two"
        )
    return theta


def attention(
    fields: Fields,
    *,
    kv_heads_default: bool,
    qk_norm: Literal["none", "head", "full"],
    bias: bool = False,
    sliding_window: int | None = None,
    clip_qkv: float | None = None,
) -> AttentionSpec:
    """Heads and their width. `kv_heads_default`: the family reads a null num_key_value_heads as num_attention_heads.
    A missing or null head_dim is hidden_size / num_attention_heads in all families here."""
    heads = fields.count("num_attention_heads")
    if kv_heads_default and "num_key_value_heads" in fields.config and fields.config["num_key_value_heads"] is None:
        kv_heads = heads
    else:
        kv_heads = fields.count("num_key_value_heads")
    if heads % kv_heads:
        raise fields.fault("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads {heads}")
    head_dim = fields.optional_count("head_dim")
    if head_dim is None:
        hidden = fields.count("hidden_size")
        if hidden % heads:
            raise fields.fault("hidden_size", f"is {hidden}, which num_attention_heads {heads} does not divide")
        head_dim = hidden // heads
    if head_dim % 2:
        raise fields.fault("head_dim", f"is {head_dim}", "rotary embedding needs an even width")
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope_theta=rope_theta(fields),
        qk_norm=qk_norm,
        bias=bias,
        sliding_window=sliding_window,
        clip_qkv=clip_qkv,
    )


def moe(fields: Fields, *, width_key: str, router: str) -> MoESpec:
    num_experts = fields.count("num_experts", "num_local_experts", maximum=MAX_EXPERTS)
    top_k = fields.count("num_experts_per_tok")
    if top_k > num_experts:
        raise fields.fault("num_experts_per_tok", f"is {top_k}, more than the {num_experts} experts there are")
    activation = fields.text("hidden_act")
    if activation not in ACTIVATIONS:
        raise fields.fault("hidden_act", f"is {activation!r}", f"supported: {', '.join(ACTIVATIONS)}")
    return MoESpec(num_experts, top_k, fields.count(width_key), router, activation)


def model(
    fields: Fields, attention: AttentionSpec, layers: tuple[MoESpec | int, ...], norm_eps: float | None = None
) -> ModelSpec:
    """The whole spec. `norm_eps`: what a missing rms_norm_eps means; None: missing is an error."""
    if fields.config.get("quantization_config") is not None:
        raise fields.fault(
            "quantization_config", "is set", "quantized checkpoints are not supported, take the bf16 release"
        )
    num_experts = sum(layer.num_experts for layer in layers if isinstance(layer, MoESpec))
    if num_experts > MAX_EXPERTS:
        raise fields.fault("num_hidden_layers", f"x experts gives {num_experts} experts, more than {MAX_EXPERTS}")
    return ModelSpec(
        model_type=fields.text("model_type"),
        hidden=fields.count("hidden_size"),
        vocab=fields.count("vocab_size"),
        attention=attention,
        layers=layers,
        norm_eps=fields.number("rms_norm_eps", norm_eps),
        max_positions=fields.count("max_position_embeddings"),
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        dtype=stored_dtype(fields),
    )


def stored_dtype(fields: Fields) -> str:
    """`dtype`, or `torch_dtype` as older files write it; bfloat16 where neither says."""
    key = "dtype" if fields.config.get("dtype") is not None else "torch_dtype"
    if fields.config.get(key) is None:
        return "bfloat16"
    name = fields.text(key)
    if name not in DTYPES:
        raise fields.fault(key, f"is {_short(name)}", f"supported: {', '.join(DTYPES)}")
    return name


# -- tensors -------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class MoENames:
    """How a family names the tensors of a sparse layer, under model.layers.<i>."""

    router: str
    expert: str  # with {e} for the expert's number
    gate: str
    up: str
    down: str


def decoder_tensors(spec: ModelSpec, names: MoENames) -> Iterator[TensorSpec]:
    """Every tensor of a Llama-like decoder with the family's names for sparse layers, in checkpoint order."""
    hidden = spec.hidden
    yield TensorSpec("model.embed_tokens.weight", (spec.vocab, hidden), "embed_tokens")
    for i, layer in enumerate(spec.layers):
        yield from _attention_tensors(spec, i)
        if isinstance(layer, MoESpec):
            yield from _moe_tensors(spec, i, names)
        else:
            yield from _dense_tensors(hidden, i, layer)
    yield TensorSpec("model.norm.weight", (hidden,), "norm")
    if not spec.tied_embeddings:
        yield TensorSpec("lm_head.weight", (spec.vocab, hidden), "lm_head")


def _attention_tensors(spec: ModelSpec, i: int) -> Iterator[TensorSpec]:
    a, hidden = spec.attention, spec.hidden
    q_width, kv_width = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    stored, part = f"model.layers.{i}.", f"layers.{i}."
    yield TensorSpec(stored + "input_layernorm.weight", (hidden,), part + "input_norm")
    widths = {"q_proj": (q_width, hidden), "k_proj": (kv_width, hidden), "v_proj": (kv_width, hidden)}
    for name, shape in (widths | {"o_proj": (hidden, q_width)}).items():
        yield TensorSpec(f"{stored}self_attn.{name}.weight", shape, part + name)
        if a.bias:
            yield TensorSpec(f"{stored}self_attn.{name}.bias", shape[:1], f"{part}{name}.bias")
    if a.qk_norm != "none":
        full = a.qk_norm == "full"
        for name, width in (("q_norm", q_width), ("k_norm", kv_width)):
            yield TensorSpec(f"{stored}self_attn.{name}.weight", (width if full else a.head_dim,), part + name)
    yield TensorSpec(stored + "post_attention_layernorm.weight", (hidden,), part + "post_norm")


def _dense_tensors(hidden: int, i: int, width: int) -> Iterator[TensorSpec]:
    for name, shape in (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width))):
        yield TensorSpec(f"model.layers.{i}.mlp.{name}_proj.weight", shape, f"layers.{i}.mlp.{name}")


def _moe_tensors(spec: ModelSpec, i: int, names: MoENames) -> Iterator[TensorSpec]:
    layer, hidden, stored = spec.moe(i), spec.hidden, f"model.layers.{i}."
    yield TensorSpec(f"{stored}{names.router}.weight", (layer.num_experts, hidden), f"layers.{i}.router")
    up, down = (layer.intermediate, hidden), (hidden, layer.intermediate)
    for e in range(layer.num_experts):
        stem, expert = stored + names.expert.format(e=e), ExpertId(i, e)
        yield TensorSpec(f"{stem}.{names.gate}.weight", up, "gate", expert)
        yield TensorSpec(f"{stem}.{names.up}.weight", up, "up", expert)
        yield TensorSpec(f"{stem}.{names.down}.weight", down, "down", expert)


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`: how its config.json is read and what its checkpoint holds."""

    read: Callable[[Fields], ModelSpec]
    tensors: Callable[[ModelSpec], Iterator[TensorSpec]]

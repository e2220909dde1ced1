"""Bytes and flops by hand for one small model, and the workspace as the sum that it says it is."""

from moesaic.core.model import AttentionSpec, ModelSpec, MoESpec, TensorSpec
from moesaic.core.routing import ExpertId
from moesaic.cost.footprint import (
    StepShape,
    StepWork,
    dense_bytes,
    dense_read_bytes,
    expert_flops_per_token,
    kv_token_bytes,
    workspace_bytes,
)

SPEC = ModelSpec(
    "mixtral", 32, 100, AttentionSpec(4, 2, 8, 1e4), (MoESpec(8, 2, 48, "softmax_topk_renorm"), 64), 1e-5, 128, False
)
TENSORS = (
    TensorSpec("model.embed_tokens.weight", (100, 32), "embed_tokens"),
    TensorSpec("model.norm.weight", (33,), "norm"),
    TensorSpec("gate", (48, 32), "gate", ExpertId(0, 0)),
)


def test_dense_bytes_leave_experts_out_and_round_each_tensor_to_the_slab():
    assert dense_bytes(TENSORS, 2) == 6400 + 256


def test_a_decode_step_reads_the_head_but_not_the_embedding_table():
    assert dense_read_bytes(SPEC, TENSORS, 2) == dense_bytes(TENSORS, 2) - 6400


def test_kv_and_expert_costs():
    assert kv_token_bytes(SPEC, 2) == 2 * 2 * 2 * 8 * 2
    assert expert_flops_per_token(SPEC, 0) == 6 * 32 * 48


def test_work_of_each_op():
    work = StepWork(SPEC, 2, num_tokens=3, context_tokens=10, num_logits=1)
    assert work.of("head").num_bytes == 100 * 32 * 2
    assert work.of("head").num_flops == 2 * 100 * 32
    assert work.of("L0.router").num_flops == 2 * 8 * 32 * 3
    assert work.of("L1.mlp").num_bytes == 3 * 64 * 32 * 2
    weights = 32 * (2 * 32 + 2 * 16)
    assert work.of("L0.attn").num_bytes == weights * 2 + 10 * 2 * 2 * 8 * 2
    assert work.of("sample").num_bytes == 100 * 4


def test_workspace_counts_the_stream_and_the_largest_part():
    step = StepShape(num_tokens=16, num_logits=4)
    stream = 16 * 32 * (4 * 2 + 3 * 4) + 3 * 16 * 8 * 4
    # logits: 4 rows of 100, 80 bytes each, are the largest once nothing else is
    logits = 4 * 100 * 80
    assert workspace_bytes(SPEC, 2, step, 0, 0) >= stream + 16 * (64 * (3 * 2 + 8)) + 16 * 32 * 2
    big = 10**7
    assert workspace_bytes(SPEC, 2, step, big, 0) - big >= stream
    assert workspace_bytes(SPEC, 2, step, 0, big) - big >= stream
    wide = StepShape(num_tokens=1, num_logits=64)
    assert workspace_bytes(SPEC, 2, wide, 0, 0) >= 16 * logits

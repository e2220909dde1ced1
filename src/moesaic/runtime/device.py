"""The device a model runs on: which one, in which dtype, and what the driver and libraries already hold of it."""

from __future__ import annotations

import os

import torch

from moesaic.core.errors import UserError

MiB = 1 << 20
# what lazily loaded kernels and library handles add to the context after the warm-up, seen on Hopper
LAZY_KERNEL_BYTES = 96 * MiB
# cuBLAS workspaces and half-filled segments, which lie inside torch's allocator but are nobody's tensors
ALLOCATOR_BYTES = 64 * MiB


def choose_device(wish: str) -> torch.device:
    """ "auto" is the first GPU, else the CPU. UserError where the wished device is not there."""
    if wish == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise UserError(f"--device {wish!r} is no device", "give cpu, cuda or cuda:<n>") from error
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {wish!r} is not supported", "give cpu, cuda or cuda:<n>")
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise UserError("--device cuda: no usable NVIDIA GPU", "see `moesaic doctor`, or give --device cpu")
        device = torch.device("cuda", device.index if device.index is not None else torch.cuda.current_device())
        if device.index >= torch.cuda.device_count():
            raise UserError(f"--device {wish!r}: this machine has {torch.cuda.device_count()} GPU(s)", "give a lower n")
    return device


def choose_dtype(wish: str, checkpoint: str) -> torch.dtype:
    """ "auto" is the checkpoint's own."""
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    names |= {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "float": torch.float32,
              "half": torch.float16}  # fmt: skip
    name = checkpoint if wish == "auto" else wish
    if name not in names:
        raise UserError(f"--dtype {name!r} is not supported", "give auto, float32, bfloat16 or float16")
    return names[name]


def context_bytes(device: torch.device, dtype: torch.dtype) -> int:
    """Device bytes held outside torch's allocator once the libraries a step uses are loaded: the CUDA context, its
    modules, and whatever other processes hold when the driver does not tell processes apart. 0 on the CPU."""
    if device.type == "cpu":
        return 0
    warm_up(device, dtype)
    free, total = torch.cuda.mem_get_info(device)
    used = _process_bytes(device)
    if used is None:
        used = total - free
    held = torch.cuda.memory_reserved(device)
    return max(0, used - held) + LAZY_KERNEL_BYTES


def warm_up(device: torch.device, dtype: torch.dtype) -> None:
    """Loads the libraries that a step uses on a GPU, by calling each once; nothing on the CPU."""
    if device.type == "cpu":
        return
    a = torch.ones(2, 64, 64, dtype=dtype, device=device)
    torch.bmm(a, a)
    torch.nn.functional.linear(a[0], a[0]).float().softmax(-1).cumsum(-1)
    torch.nn.functional.scaled_dot_product_attention(a[None], a[None], a[None])
    torch.argsort(a[0, 0].long(), stable=True)
    torch.cuda.synchronize(device)


def _process_bytes(device: torch.device) -> int | None:
    """This process's bytes on the GPU as the driver counts them; None where it does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
    except pynvml.NVMLError:
        return None
    return None

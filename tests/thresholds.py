"""How far a result may be from its reference. Change one only with a written reason."""

from __future__ import annotations

import torch

# Normalized mean squared error of an op against its slow twin. One rounding to the storage format leaves 2.7e-6 (bf16)
# or 4e-8 (fp16); an expert rounds four times on the way, and few large elements may carry most of the sum.
KERNEL_NMSE = {torch.float32: 1e-11, torch.bfloat16: 1e-4, torch.float16: 2e-6}

# Logits of two right float32 implementations differ by up to 2e-5 over ten families; the smallest deliberate fault
# (a wrong rms_norm_eps) changes them by 1e-3.
LOGITS_FLOAT32 = 1e-4

# Our bf16 error against float32, over that of transformers' bf16.
BF16_ERROR_RATIO = 1.5

"""Floor 4: does it. The only room, with kernels, models and memory.buffers, that touches tensors."""

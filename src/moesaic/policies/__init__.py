"""Floor 2: pure decisions. Values in, values out; no torch, no clock, no I/O."""

"""Floor 8: named workloads, the bounds their machine sets, and records of what was measured."""

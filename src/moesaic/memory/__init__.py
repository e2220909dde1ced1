"""Floor 2: who holds which bytes."""

"""Floor 4: what would happen. Recorded routing, replays of the shipped store, and bounds."""

"""Floor 0: the vocabulary. Plain frozen data, standard library only."""

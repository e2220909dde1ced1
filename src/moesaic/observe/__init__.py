"""Floor 1: looking at results. Traces for Perfetto, records of runs, pictures for the terminal; never torch."""

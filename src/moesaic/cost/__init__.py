"""Floor 2: what work costs, in bytes, flops and seconds."""

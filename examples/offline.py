"""Continue a few prompts with a model that is larger than the memory it may use on the device.

    python examples/offline.py [MODEL]

Scripts written for vLLM run by changing the import line and naming a device budget.
"""

import sys
from importlib.resources import files

from moesaic.api import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else str(files("moesaic") / "models/data/tiny")
prompts = [
    "def read_file(path):",
    "The configuration file is",
    "To install the package,",
]
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=32, seed=1)

with LLM(model, expert_memory="40%") as llm:
    for output in llm.generate(prompts, params):
        print(repr(output.prompt), "->", repr(output.outputs[0].text))
    stats = llm.stats()
    print(f"{stats.decode_tokens_per_s:.0f} tokens/s, {stats.hit_rate:.0%} of the wanted experts were on the device")

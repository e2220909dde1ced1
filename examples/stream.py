"""Print text as it is written.

python examples/stream.py [MODEL] [PROMPT]
"""

import sys
from importlib.resources import files

from moesaic.api import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else str(files("moesaic") / "models/data/tiny")
prompt = sys.argv[2] if len(sys.argv) > 2 else "The function returns"

with LLM(model, expert_memory="40%") as llm:
    print(prompt, end="", flush=True)
    for output in llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=64)):
        print(output.outputs[0].delta, end="", flush=True)
    print()

"""Fill in the middle through the plain OpenAI client: `fulgur serve`, then `python examples/complete.py`."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("FULGUR_URL", "http://127.0.0.1:8787/v1"), api_key="none")
answer = client.completions.create(
    model=os.environ.get("FULGUR_MODEL", "60M"),
    prompt="def add(a, b):\n    return ",
    suffix="\n\n\nprint(add(1, 2))\n",
    max_tokens=16,
    temperature=0,
    stop="\n",
    extra_body={"min_probability": 0},  # the whole guess; by default text that the model is unsure of is left out
)
print(answer.choices[0].text)

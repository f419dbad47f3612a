"""The agent in public benchmarks: Terminal-Bench through Harbor, SWE-bench, Aider's polyglot exercises."""

"""The agent in other people's benchmarks: Terminal-Bench through Harbor, SWE-bench, Aider's polyglot exercises."""

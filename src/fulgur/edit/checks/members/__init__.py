"""Check with jedi that the attributes, parameters and imports an edit of Python code introduces exist.

`process.py` is the agent's side; the rest runs as `python -m fulgur.edit.checks.members` in a separate, sandboxed
process, because jedi loads compiled modules of the project's environment.
"""

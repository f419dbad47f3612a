"""Do the attributes, parameters and imports that an edit of Python code introduces exist? Judged by jedi.

`process.py` is the agent's side; the rest is `python -m fulgur.edit.checks.members`, a sandboxed process of its own,
because jedi loads compiled modules of the project's environment.
"""

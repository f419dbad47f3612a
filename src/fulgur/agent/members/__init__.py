"""Do the attributes, parameters and imports that an edit of Python code introduces exist? Judged by jedi.

`process.py` is the agent's side; the rest runs in a process of its own (`python -m fulgur.agent.members`), sandboxed,
because jedi loads compiled modules of the project's environment.
"""

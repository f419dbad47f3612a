import os
import sys

# `python -m fulgur` puts the current folder first on the module path. Remove it: no module is ever loaded from there.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]

from fulgur.ui.cli import main

raise SystemExit(main())

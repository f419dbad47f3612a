"""Run programs from standard input (a JSON list), each in its own process, and print a list of which succeeded.

    python run_programs.py SECONDS
Uses only the standard library, because it runs inside the sandbox.
"""

import json
import os
import resource
import signal
import sys


def ends_well(program: str, seconds: int) -> bool:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        signal.alarm(seconds)
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
        exec(program, {"__name__": "program"})
        os._exit(0)
    except BaseException:
        os._exit(1)


if __name__ == "__main__":
    limit = int(sys.argv[1])
    json.dump([ends_well(program, limit) for program in json.load(sys.stdin)], sys.stdout)

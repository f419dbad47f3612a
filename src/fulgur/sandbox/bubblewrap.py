"""The preferred sandbox, bubblewrap: the whole file system read-only, the writable folders bound over it, no
network."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fulgur.sandbox import seccomp, start
from fulgur.sandbox.backend import Identity, Launch, Probe, identity, memory_file, mounts
from fulgur.sandbox.policy import Policy
from fulgur.sandbox.protect import NameHolders


class Bubblewrap:
    """Namespaces created by `bwrap`, with the seccomp filter inside them."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self._holders = NameHolders()
        self._relied_on: dict[Path, Identity] = {}

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """Make everything read-only except the policy's folders; `/tmp` and `/run` are private and empty."""
        argv = [start.program("bwrap", policy.workspace) or "bwrap"]
        argv += ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        if not policy.network:
            argv.append("--unshare-net")
        argv += ["--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        argv += ["--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run", *_resolver(), *_kernel_settings()]
        argv += _interpreter()
        if not policy.writable:
            argv += ["--ro-bind", str(policy.workspace), str(policy.workspace)]
        protected = policy.protected()
        held = [path for path in protected.paths if self._holders.hold(path)]
        self._relied_on = {path: identity(path) for path in held}
        for path, writable in mounts(policy, protected):
            argv += ["--bind" if writable else "--ro-bind", str(path), str(path)]
        for path in policy.hidden:
            inside = ["--tmpfs", str(path), "--remount-ro", str(path)]
            argv += inside if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        filter_fd = memory_file(seccomp.build(internet=True))
        argv += ["--seccomp", str(filter_fd), "--chdir", str(folder), "--", *command]
        return Launch(argv, (filter_fd,), {"TMPDIR": "/tmp"})

    def stale(self) -> bool:
        """Binds follow a folder, but not a protected name that was replaced outside."""
        return any(identity(path) != known for path, known in self._relied_on.items())

    def close(self) -> None:
        """Remove the empty folders that held names."""
        self._holders.release()


def _resolver() -> list[str]:
    """`/etc/resolv.conf` often points into `/run`, which is hidden: bind its target back."""
    target = Path("/etc/resolv.conf").resolve()
    return ["--ro-bind", str(target), str(target)] if target.is_relative_to("/run") and target.is_file() else []


def _interpreter() -> list[str]:
    """Keep the running Python visible if it lies in a hidden folder: checks and tests call it."""
    hidden = ("/tmp", "/var/tmp", "/run")
    package = Path(__file__).parents[1]
    prefixes = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix, package)}
    inside = sorted(prefix for prefix in prefixes if any(Path(prefix).is_relative_to(folder) for folder in hidden))
    return [word for prefix in inside for word in ("--ro-bind", prefix, prefix)]


def _kernel_settings() -> list[str]:
    """A fresh `/proc` lets root write the kernel's settings: bind those parts back read-only."""
    names = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
    return [word for name in names if Path(name).exists() for word in ("--ro-bind", name, name)]


@functools.cache
def probe() -> Probe:
    """Start `true` inside, with every option that is used for real."""
    if start.program("bwrap") is None:
        return Probe("bubblewrap", False, "`bwrap` is not installed")
    if not seccomp.supported():
        return Probe("bubblewrap", False, f"no system call table for {os.uname().machine}")
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy.make("workspace-write", Path(folder), Path(folder) / ".fulgur")
        sandbox = Bubblewrap()
        launch = sandbox.launch(["true"], policy, policy.workspace)
        try:
            done = start.run(launch.argv, policy.workspace, seconds=10, pass_fds=launch.pass_fds)
        except (OSError, start.TimeoutExpired) as error:
            return Probe("bubblewrap", False, str(error))
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
            sandbox.close()
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return Probe("bubblewrap", False, said[-1] if said else "it failed")
    return Probe("bubblewrap", True)

"""The first choice: bubblewrap. The whole file system read-only, the writable folders bound over it, no network."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fulgur.sandbox import seccomp
from fulgur.sandbox.backend import Launch, NameHolders, Probe, memory_file
from fulgur.sandbox.policy import Policy


class Bubblewrap:
    """Namespaces by `bwrap`, and the seccomp filter within them."""

    name = "bubblewrap"

    def __init__(self) -> None:
        self._holders = NameHolders()

    def launch(self, command: Sequence[str], policy: Policy, folder: Path) -> Launch:
        """Everything read-only but the policy's folders; `/tmp` and `/run` are private and empty."""
        program = shutil.which("bwrap") or "bwrap"
        argv = [program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        if not policy.network:
            argv.append("--unshare-net")
        argv += ["--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        argv += ["--tmpfs", "/tmp", "--tmpfs", "/var/tmp", "--tmpfs", "/run", *_resolver(), *_kernel_settings()]
        argv += _interpreter()
        if not policy.writable:
            argv += ["--ro-bind", str(policy.workspace), str(policy.workspace)]
        for root in policy.writable:
            argv += ["--bind", str(root), str(root)]
        for path in policy.protected():
            self._holders.hold(path)
            if path.is_symlink():
                continue
            argv += ["--ro-bind", str(path), str(path)]
        filter_fd = memory_file(seccomp.build(internet=True, freeze_metadata=False))
        argv += ["--seccomp", str(filter_fd), "--chdir", str(folder), "--", *command]
        return Launch(argv, (filter_fd,), {"TMPDIR": "/tmp"})

    def stale(self) -> bool:
        """Binds follow the folder: never."""
        return False

    def close(self) -> None:
        """Remove the empty folders that held a name."""
        self._holders.release()


def _resolver() -> list[str]:
    """`/etc/resolv.conf` often points into `/run`, which is hidden: bind its target back."""
    target = Path("/etc/resolv.conf").resolve()
    return ["--ro-bind", str(target), str(target)] if target.is_relative_to("/run") and target.is_file() else []


def _interpreter() -> list[str]:
    """The Python that runs this stays visible where it lies in a folder that is hidden: checks and tests call it."""
    hidden = ("/tmp", "/var/tmp", "/run")
    package = Path(__file__).parents[1]
    prefixes = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix, package)}
    inside = sorted(prefix for prefix in prefixes if any(Path(prefix).is_relative_to(folder) for folder in hidden))
    return [word for prefix in inside for word in ("--ro-bind", prefix, prefix)]


def _kernel_settings() -> list[str]:
    """A fresh `/proc` lets root write the kernel's settings: those parts are bound back read-only."""
    names = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi", "/proc/scsi")
    return [word for name in names if Path(name).exists() for word in ("--ro-bind", name, name)]


@functools.cache
def probe() -> Probe:
    """Start `true` inside, with every option that is used for real."""
    if shutil.which("bwrap") is None:
        return Probe("bubblewrap", False, "`bwrap` is not installed")
    if not seccomp.supported():
        return Probe("bubblewrap", False, f"no system call table for {os.uname().machine}")
    with tempfile.TemporaryDirectory() as folder:
        policy = Policy.make("workspace-write", Path(folder), Path(folder) / ".fulgur")
        sandbox = Bubblewrap()
        launch = sandbox.launch(["true"], policy, policy.workspace)
        try:
            done = subprocess.run(
                launch.argv, pass_fds=launch.pass_fds, capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Probe("bubblewrap", False, str(error))
        finally:
            for descriptor in launch.pass_fds:
                os.close(descriptor)
            sandbox.close()
    if done.returncode != 0:
        return Probe("bubblewrap", False, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it failed")
    return Probe("bubblewrap", True)

"""What commands and the model's tools never see unless a person allows it: secrets in files and in variables."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# Relative to the user's home folder.
FILES = (
    ".ssh", ".gnupg", ".password-store", ".local/share/keyrings", ".vault-token", ".netrc", ".authinfo", ".pgpass",
    ".my.cnf", ".aws", ".azure", ".config/gcloud", ".config/doctl", ".config/rclone", ".config/op", ".kube",
    ".oci", ".terraform.d", ".terraformrc", ".docker/config.json", ".git-credentials", ".config/git/credentials",
    ".config/gh", ".config/glab-cli", ".config/hub", ".npmrc", ".yarnrc.yml", ".pypirc", ".cargo/credentials",
    ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml", ".gradle/gradle.properties", ".s3cfg",
    ".config/huggingface", ".cache/huggingface/token", ".huggingface", ".codex/auth.json", ".claude/.credentials.json",
    ".mozilla", ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".thunderbird",
    ".bash_history", ".zsh_history", ".python_history", ".node_repl_history", ".psql_history", ".mysql_history",
)  # fmt: skip

# Names of variables, in upper case.
VARIABLES = (
    "*_KEY", "*_KEY_*", "*APIKEY*", "*SECRET*", "*TOKEN*", "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*_PASS", "*_PWD",
    "*CREDENTIAL*", "*_PAT", "*_COOKIE*", "*_DSN", "*CONNECTION_STRING*", "*_AUTH", "*_AUTH_*", "*PRIVATE*",
)  # fmt: skip
_ALLOWED = ("SSH_AUTH_SOCK",)  # an address, and sockets are refused in the sandbox anyway
_VALUES = re.compile(r"://[^/\s:@]*:[^/\s@]+@|^(sk-|gh[oprsu]_|github_pat_|glpat-|xox[abpr]-|AKIA)|-----BEGIN")


def secret_files(home: Path) -> Iterator[Path]:
    """The real paths of those that exist."""
    for name in FILES:
        path = home / name
        try:
            if path.exists():
                yield path.resolve()
        except OSError:
            continue


def is_secret(name: str, value: str, exclude: Sequence[str] = VARIABLES) -> bool:
    """Whether to leave a variable out: because of its name, or because its value is a key or contains a password."""
    if name in _ALLOWED:
        return False
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in exclude) or bool(_VALUES.search(value))


def without_secrets(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a command may see."""
    return {name: value for name, value in variables.items() if not is_secret(name, value)}

"""The error of a refactoring that cannot be done exactly."""

from __future__ import annotations

from fulgur.errors import FulgurError


class RefactorError(FulgurError):
    """The refactoring was not done, and nothing was changed."""

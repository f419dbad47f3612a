"""What a refactoring says when it cannot be done exactly."""

from __future__ import annotations

from fulgur.errors import FulgurError


class RefactorError(FulgurError):
    """The refactoring was not done, and nothing was changed."""

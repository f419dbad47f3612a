"""Our refactorings beside those of other tools, on the same cases."""

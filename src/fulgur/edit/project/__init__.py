"""Refactorings that follow a name through the whole project by its imports. None of the project's code is run."""

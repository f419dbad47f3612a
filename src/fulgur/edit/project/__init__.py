"""Refactorings that follow a name through the whole project, by its imports. Nothing of the project is run."""

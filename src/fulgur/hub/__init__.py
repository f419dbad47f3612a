"""Models from outside: which are worth having, which fit this machine, how to fetch them, and which are here."""

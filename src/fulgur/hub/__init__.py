"""Models from outside: which are worth having, which fit this machine, fetching them, and those that are here."""

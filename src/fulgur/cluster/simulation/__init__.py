"""How many users a cluster can serve: sessions, replicas and their deaths, measured service times, our own routing."""

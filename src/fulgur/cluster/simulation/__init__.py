"""How many users a cluster bears: sessions, replicas and their deaths, measured service times, our own routing."""

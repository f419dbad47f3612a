"""What lasts: responses, keys and usage, in SQLite or PostgreSQL."""

"""Where tokens come from: the local engine, an upstream API, or a script."""

"""One machine to many: replicas that run an engine, fronts that talk to clients, and the way between them."""

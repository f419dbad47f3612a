"""From one machine to many: replicas that run an engine, fronts that talk to clients, and the protocol between them."""

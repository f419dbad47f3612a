"""Transient state: limits, runs under way, their events and mail between fronts, in memory or Redis."""

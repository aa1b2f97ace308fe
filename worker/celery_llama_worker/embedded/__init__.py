"""A server where there is none, and the process that keeps it."""

"""One job in Redis: what changes it (Lua), and what is read of it."""

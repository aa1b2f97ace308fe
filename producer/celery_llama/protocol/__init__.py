"""What goes over the wire: jobs, events, results, the names of keys and channels, and every error."""

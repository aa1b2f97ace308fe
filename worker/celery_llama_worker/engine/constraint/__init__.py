"""What holds a job's output to a schema or a grammar."""

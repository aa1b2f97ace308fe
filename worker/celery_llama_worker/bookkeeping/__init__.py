"""The ledger's side of the worker: claiming, publishing, leases, jobs that others lost."""

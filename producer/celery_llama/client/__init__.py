"""The client: what it does, written once as flows of steps, and the two that perform them."""

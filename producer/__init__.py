"""The contract of celery-llama, and the client side of it. Imports no llama-cpp-python."""

"""The binding to llama.cpp: weights, contexts, batches, samplers."""

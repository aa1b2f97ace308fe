"""The decoding engine: a pure scheduler over llama.cpp's low-level API. Knows neither Celery nor Redis."""

"""Which tokens a step computes, in which slots. Pure: knows neither llama.cpp nor Redis."""

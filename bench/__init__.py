"""The benchmark: the library's limit, the queue, its peers; run by `make bench`. Not part of the product."""

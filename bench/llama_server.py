"""llama-server out of the wheel `xllamacpp`, with llama-server's own options; for where no binary of it is at hand.

Run by the interpreter that has the wheel, which need not be this project's: imports nothing else.
`--llama-server "path/to/python bench/llama_server.py"`
"""

from __future__ import annotations

import argparse
import signal
import sys


def main() -> None:
    """Serve until a signal comes."""
    del sys.path[0]  # this file's folder has a queue.py, which is not the one that everybody else imports
    import xllamacpp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-np", "--parallel", type=int, required=True)
    parser.add_argument("-c", "--ctx-size", type=int, required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = given.model
    params.hostnames, params.port = [given.host], given.port
    params.n_parallel, params.n_ctx = given.parallel, given.ctx_size
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given.threads
    params.kv_unified = False
    params.cont_batching = True
    running = xllamacpp.Server(params)
    print(running.listening_address, xllamacpp.__version__, xllamacpp.get_system_info(), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()

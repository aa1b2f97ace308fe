"""A subscriber that does nothing but note when bytes arrive; what they say is read afterwards.

`python -m bench.subscriber HOST PORT PATTERN` prints `ready`; when its standard input ends, a JSON object of arrivals.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import hiredis


def _listen(host: str, port: int, pattern: str) -> Iterator[tuple[int, bytes]]:
    with socket.create_connection((host, port)) as line:
        line.sendall(f"PSUBSCRIBE {pattern}\r\n".encode())
        line.recv(1 << 16)
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([line, sys.stdin], [], [])
            if line in readable:
                data = line.recv(1 << 20)
                yield time.monotonic_ns(), data
            elif sys.stdin in readable:
                return


def main() -> None:
    """Listen, then say what came when: for each job, (number of tokens so far, nanoseconds)."""
    chunks = list(_listen(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    arrivals: dict[str, list[tuple[int, int]]] = defaultdict(list)
    reader = hiredis.Reader()
    for at, data in chunks:
        reader.feed(data)
        while (message := reader.gets()) is not False:
            _, _, channel, payload = message
            job = channel.decode().partition("{")[2].partition("}")[0]
            for _ in json.loads(payload).get("tokens", ()):
                arrivals[job].append((len(arrivals[job]) + 1, at))
    json.dump(arrivals, sys.stdout)


if __name__ == "__main__":
    main()

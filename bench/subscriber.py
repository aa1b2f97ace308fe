"""A subscriber that does nothing but note when bytes arrive; what they say is read afterwards.

`python -m bench.subscriber HOST PORT PATTERN` prints `ready`; when its standard input ends, a JSON object of arrivals.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator


def _listen(host: str, port: int, pattern: str) -> Iterator[tuple[int, bytes]]:
    with socket.create_connection((host, port)) as line:
        line.sendall(f"*2\r\n$10\r\nPSUBSCRIBE\r\n${len(pattern)}\r\n{pattern}\r\n".encode())
        line.recv(1 << 16)
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([line, sys.stdin], [], [])
            if line in readable:
                data = line.recv(1 << 20)
                yield time.monotonic_ns(), data
            elif sys.stdin in readable:
                return


def _messages(data: bytes) -> Iterator[tuple[int, str, bytes]]:
    """Position after each message, its channel, its payload."""
    at = 0
    while at < len(data):
        parts: list[bytes] = []
        at = data.index(b"\r\n", at) + 2  # *4
        for _ in range(4):
            end = data.index(b"\r\n", at)
            size = int(data[at + 1 : end])
            parts.append(data[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        yield at, parts[2].decode(), parts[3]


def main() -> None:
    """Listen, then say what came when: for each job, (number of tokens so far, nanoseconds)."""
    chunks = list(_listen(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    ends: list[int] = []
    for _, data in chunks:
        ends.append((ends[-1] if ends else 0) + len(data))
    arrivals: dict[str, list[tuple[int, int]]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for at, channel, payload in _messages(b"".join(data for _, data in chunks)):
        event = json.loads(payload)
        job = channel.partition("{")[2].partition("}")[0]
        for _ in event.get("tokens", ()):
            counts[job] += 1
            arrivals[job].append((counts[job], chunks[bisect_left(ends, at)][0]))
    json.dump(arrivals, sys.stdout)


if __name__ == "__main__":
    main()

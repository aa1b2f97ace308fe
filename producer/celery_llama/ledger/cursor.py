"""What a reader sees next. Pure, no I/O; owned by whoever reads, one cursor a reader.

Events of a job reach a reader twice, from the channel and from the stream, in any interleaving. `seq` counts 1, 2, 3
and so on across the job's attempts, so it alone decides: the next number is shown, an earlier one was seen, a later one
means that something is missing and must be fetched from the stream, where every event is before it is published.
"""

from __future__ import annotations

from celery_llama.protocol.events import Event


class EventCursor:
    """Lets each event of a job through once and in order."""

    def __init__(self, after: int = 0) -> None:
        #: The last sequence number that the reader has.
        self.seq = after
        #: Whether the terminal event has passed; nothing follows it.
        self.done = False
        #: Whether the stream was begun anew because the failed job was run again: what follows is another text.
        self.restarted = False
        self._attempt, self._passed = 0, 0
        self._highest = after

    @property
    def gap(self) -> bool:
        """Whether an event arrived whose predecessor did not: replay the stream from `position`."""
        return self._highest > self.seq

    @property
    def position(self) -> str:
        """Where in the stream the unread part begins: the start of an XRANGE."""
        return f"({self._attempt}-{self._passed}" if self._passed else "-"

    def feed(self, event: Event) -> bool:
        """Say whether the reader is to see this event now."""
        if event.attempt > self._attempt and event.seq <= self._passed:
            self.restarted = True
        if self.done or self.restarted or (event.attempt, event.seq) <= (self._attempt, self._passed):
            return False
        if event.seq > self.seq + 1:
            self._highest = max(self._highest, event.seq)
            return False
        new = event.seq == self.seq + 1
        self.seq = max(self.seq, event.seq)
        self._attempt, self._passed = event.attempt, event.seq
        self.done = event.terminal
        return new

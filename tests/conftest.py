"""What holds for every test: nothing depends on how fast the machine is."""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")

# A shell that starts us in the background without job control has SIGINT and SIGQUIT ignored, and children inherit
# that; those that are sent a signal here are meant to receive it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

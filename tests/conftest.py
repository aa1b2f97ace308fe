"""What holds for every test: nothing depends on how fast the machine is."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("project", deadline=None)
settings.load_profile("project")

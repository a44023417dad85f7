"""Shows what replicas print, from their logs: they write to files, so that nothing is lost when `muster run` is killed."""

from __future__ import annotations

from pathlib import Path

CHUNK = 1 << 20


class LogFollower:
    """Reads on where it stopped, in whole lines."""

    def __init__(self) -> None:
        self._places: dict[Path, int] = {}

    def read(self, label: str, log: Path) -> list[str]:
        """The lines that are new in the log, each with the replica's label in front."""
        return [f"[{label}] {line}" for line in self.lines(log)]

    def lines(self, log: Path) -> list[str]:
        """The lines that are new in the log."""
        place = self._places.get(log, 0)
        try:
            with log.open("rb") as file:
                file.seek(place)
                chunk = file.read(CHUNK)
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) == CHUNK:
            end = CHUNK  # a line without end
        self._places[log] = place + end
        return chunk[:end].decode(errors="replace").splitlines()

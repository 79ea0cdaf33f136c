"""The register of undoing: filled before each act, run whatever happens."""

from __future__ import annotations

from collections.abc import Callable


class UndoStack:
    """Named steps that heal what was broken, run newest first.

    A step leaves the stack only when it ran to its end, so that an interrupted healing can be
    begun again; each step must therefore be harmless when repeated.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], None]]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def register(self, name: str, step: Callable[[], None]) -> None:
        """Adds a step; to be called before the act that it undoes."""
        self._steps.append((name, step))

    def run(self) -> list[tuple[str, Exception | None]]:
        """Runs every step and gives each one's name and error; a failing step stops no other, and stays."""
        done: list[tuple[str, Exception | None]] = []
        for entry in reversed(list(self._steps)):
            name, step = entry
            problem: Exception | None = None
            try:
                step()
            except Exception as error:
                problem = error
            else:
                self._steps.remove(entry)
            done.append((name, problem))
        return done

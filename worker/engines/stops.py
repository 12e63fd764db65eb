"""StopMatcher: finds the first stop string in text that comes in pieces."""


class StopMatcher:
    """Lets text through until a stop string is complete, and keeps back only what may still open one.

    The first stop to be complete wins, whatever the pieces; of those that are complete at the same
    character, the longest. Neither it nor anything after it is released.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)  # how much of each stop the text so far ends with
        self._held = ""
        self.is_stopped = False

    def feed(self, text: str) -> str:
        """Take the next piece; returns what may be shown now."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        for position, char in enumerate(text):
            if stop_length := self._advance(char):
                self.is_stopped = True
                shown = (self._held + text[: position + 1])[:-stop_length]
                self._held = ""
                return shown
        seen = self._held + text
        shown_length = len(seen) - max(self._matched)
        self._held = seen[shown_length:]
        return seen[:shown_length]

    def flush(self) -> str:
        """The text is over: what was kept back opened no stop, so it is released."""
        shown, self._held = self._held, ""
        return shown

    def _advance(self, char: str) -> int:
        """One character further in every stop (Knuth-Morris-Pratt); the length of a completed stop, or 0."""
        completed = 0
        for index, stop in enumerate(self._stops):
            matched, borders = self._matched[index], self._borders[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                completed = max(completed, matched)
            self._matched[index] = matched
        return completed


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`: the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(stop)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[index] != stop[matched]:
            matched = borders[matched - 1]
        if stop[index] == stop[matched]:
            matched += 1
        borders[index] = matched
    return borders

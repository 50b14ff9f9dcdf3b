"""Every stable failure of the product. Codes are contract; messages say cause and next step, never content.

Blocked                     a stable code, and whether trying again can help
|-- Invalid                 input that breaks a rule; carries the path of the offending field
|-- ProviderFailure         a review provider, verifier or CMS declared a failure; may carry a wait
|-- Unavailable             a part of ours (database, broker, keys) cannot answer now; always retryable
`-- RunError
    |-- RunNotFound
    |   `-- RunWorkspaceMismatch
    |-- RunConflict
    |   `-- RunBusy         the only retryable one
    `-- RunCorrupt
"""

from __future__ import annotations

import re

ERROR_CODE = re.compile(r"[a-z][a-z0-9_.-]{0,127}")


def is_error_code(value: object) -> bool:
    """Tell whether a value is a well-formed stable code (lowercase, dotted, at most 128 characters)."""
    return isinstance(value, str) and ERROR_CODE.fullmatch(value) is not None


def area_code(area: str, code: object) -> str:
    """Return a foreign code under its area: prefixed once, or `<area>.failed` when it is not usable."""
    if is_error_code(code):
        assert isinstance(code, str)
        whole = code if code.startswith(f"{area}.") else f"{area}.{code}"
        if len(whole) <= 128:
            return whole
    return f"{area}.failed"


class Blocked(Exception):
    """A stable refusal or failure: `code` (str), `retryable` (bool), and a sentence for people."""

    def __init__(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.retryable = retryable


class Invalid(Blocked):
    """Input that breaks a rule. `path` names the offending field (`localization.source_text`), never its value."""

    def __init__(self, code: str, message: str = "", *, path: str = "") -> None:
        super().__init__(code, message)
        self.path = path


class ProviderFailure(Blocked):
    """A provider, verifier or CMS failed in a declared way.

    `retry_after_seconds` is the wait it asked for, or None. `sent` is False only when it is certain that no byte of
    the request reached the other side (a refused connection, a failed TLS handshake).
    """

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        retryable: bool,
        retry_after_seconds: float | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(code, message, retryable=retryable)
        self.retry_after_seconds = retry_after_seconds
        self.sent = sent


class Unavailable(Blocked):
    """A part of ours cannot answer now (`database.unavailable`, `queue.unavailable`, ...). Always retryable."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(code, message, retryable=True)


class RunError(Blocked):
    """The base of what a release run refuses; raised only as one of its kinds below."""


class RunNotFound(RunError):
    """No such run or step in this workspace."""

    def __init__(self, message: str = "no such release run or step") -> None:
        super().__init__("run.not_found", message)


class RunWorkspaceMismatch(RunNotFound):
    """A valid record of another workspace; worded like a missing one on purpose."""


class RunConflict(RunError):
    """A bad argument, an unsafe transition, a reused id or a full record."""

    def __init__(self, message: str, *, code: str = "run.conflict", retryable: bool = False) -> None:
        super().__init__(code, message, retryable=retryable)


class RunBusy(RunConflict):
    """The row stayed locked for ten seconds; trying again may help."""

    def __init__(self) -> None:
        super().__init__("the storage is busy; try again", code="run.busy", retryable=True)


class RunCorrupt(RunError):
    """A stored record (or one about to be written) fails validation."""

    def __init__(self, message: str = "the stored release run is damaged") -> None:
        super().__init__("run.corrupt", message)

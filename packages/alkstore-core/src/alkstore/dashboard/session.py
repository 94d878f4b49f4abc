"""Who is logged in, and what proves that a form comes from a page of ours."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from alkstore.errors import InvalidArgument

__all__ = ["LASTING", "LEAST_TOKEN", "Sessions", "new_session"]

LEAST_TOKEN: Final = 16
"""Characters of a token at least: what cannot be guessed needs no count of wrong guesses, which would lock out its owner."""

LASTING: Final = 12 * 3_600.0
"""Seconds that a login lasts."""

MOST: Final = 1_000
"""Logins that are remembered; the oldest is forgotten first."""


class Sessions:
    """The logins of one dashboard. Without a token everybody is let in, and a session is but what forms are tied to.

    A session's id is all that its cookie holds. It is known here or it is nothing: a logout ends it everywhere.
    """

    def __init__(self, token: str | None, time: Callable[[], float]) -> None:
        """Take the token, and a clock that only goes forward.

        Raises:
            InvalidArgument: The token is short.
        """
        if token is not None and (not isinstance(token, str) or len(token) < LEAST_TOKEN):
            raise InvalidArgument(
                f"token must be a str of at least {LEAST_TOKEN} characters, as secrets.token_urlsafe() gives; "
                "it is not shown here"
            )
        self._token = None if token is None else _digest(token)
        self._time = time
        self._secret = secrets.token_bytes(32)
        self._ends: dict[str, float] = {}
        # Cookies are not kept apart by port: two dashboards of one machine must not log each other out.
        self.cookie: Final = f"alkstore_{secrets.token_hex(4)}"

    @property
    def asks(self) -> bool:
        """Whether one must log in."""
        return self._token is not None

    def login(self, token: str) -> str | None:
        """Give a new session for the right token, None for a wrong one. It takes as long for any wrong one."""
        if self._token is None or not hmac.compare_digest(_digest(token), self._token):
            return None
        while len(self._ends) >= MOST:
            del self._ends[next(iter(self._ends))]
        session = new_session()
        self._ends[session] = self._time() + LASTING
        return session

    def is_known(self, session: str) -> bool:
        """Whether that session may look; without a token any may."""
        if self._token is None:
            return True
        end = self._ends.get(session)
        if end is not None and end <= self._time():
            del self._ends[session]
            end = None
        return end is not None

    def logout(self, session: str) -> None:
        """End a session; harmless if there is none."""
        self._ends.pop(session, None)

    def proof(self, session: str) -> str:
        """Give what a form of this session must carry: nobody can make it who cannot read our pages."""
        return hmac.new(self._secret, session.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()

    def proves(self, session: str, proof: str) -> bool:
        """Whether a form's proof is that of the session."""
        given = proof.encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self.proof(session).encode("ascii"))


def new_session() -> str:
    """Give an id that nobody can guess."""
    return secrets.token_urlsafe(24)


def _digest(token: str) -> bytes:
    # Compared by digests, for compare_digest tells the length of what differs in length.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()

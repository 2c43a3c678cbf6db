"""Tokens by which callers are known: their text, which clients can check, and the hash that is stored.

A token is `foqs_`, an id, `_`, a secret of 256 random bits and a checksum. docs/decisions/0050-tokens.md says why.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from hashlib import blake2b
from typing import Final, NamedTuple

from foqs.model.errors import InvalidArgumentError

TOKEN_PREFIX: Final = "foqs_"
ID_CHARS: Final = 12
SECRET_BYTES: Final = 32
RANDOM_BYTES: Final = SECRET_BYTES + 8
"""The random bytes that `new_token` needs."""
TOKEN_CHARS: Final = 67
HASH_BYTES: Final = 32

_SHAPE = re.compile(r"foqs_([a-z2-7]{12})_([A-Za-z0-9_-]{43})([A-Za-z0-9_-]{6})", re.ASCII)
_PERSON = b"foqs"


class Token(NamedTuple):
    id: str
    """It is no secret: lists, logs and errors show it."""
    secret: bytes

    def __repr__(self) -> str:
        return f"Token({self.id})"


def id_in(text: str) -> str:
    """Return the id of a token that is given whole, and of any other text the text itself.

    People paste tokens where an id is asked for. Raises InvalidArgumentError for a token with a typing error.
    """
    return parse(text).id if text.startswith(TOKEN_PREFIX) else text


def new_token(random_bytes: bytes) -> str:
    """Return the text of a new token, of RANDOM_BYTES bytes that nobody can guess."""
    assert len(random_bytes) == RANDOM_BYTES, "a token needs RANDOM_BYTES of chance"
    token_id = base64.b32encode(random_bytes[SECRET_BYTES:]).decode()[:ID_CHARS].lower()
    return text_of(Token(token_id, random_bytes[:SECRET_BYTES]))


def text_of(token: Token) -> str:
    """Return the text of a token, which its holder keeps."""
    checked = f"{TOKEN_PREFIX}{token.id}_{_encoded(token.secret)}"
    return checked + checksum(checked)


def parse(text: object) -> Token:
    """Return the id and the secret. Raises InvalidArgumentError, which does not repeat the text, for a typing error."""
    if not isinstance(text, str) or not text.startswith(TOKEN_PREFIX):
        raise InvalidArgumentError(f"this is no token of foqs, which begins with {TOKEN_PREFIX}: check the value")
    if len(text) != TOKEN_CHARS:
        raise InvalidArgumentError(
            f"the token has {len(text)} characters, and a token has {TOKEN_CHARS}: copy it whole, without spaces"
        )
    found = _SHAPE.fullmatch(text)
    if found is None or checksum(text[:-6]) != found[3]:
        raise InvalidArgumentError("the token has a typing error, because its checksum is wrong: copy it again")
    try:
        secret = base64.b64decode(found[2] + "=", altchars=b"-_", validate=True)
    except binascii.Error as error:  # pragma: no cover - 43 characters of the alphabet are always decoded
        raise InvalidArgumentError("the token has a typing error: copy it again") from error
    if _encoded(secret) != found[2]:
        # The last character has two bits to spare: a secret has one text, not four.
        raise InvalidArgumentError("the token was not written by foqs: have another one made")
    return Token(found[1], secret)


def hash_of(token: Token) -> bytes:
    """Return the hash by which a token is stored. Nobody can find the secret by it, because the secret is random."""
    return blake2b(token.secret, digest_size=HASH_BYTES, salt=token.id.encode(), person=_PERSON).digest()


def checksum(text: str) -> str:
    """Return the CRC-32 of a text. Four bytes are exactly six characters of base64url."""
    return _encoded(zlib.crc32(text.encode()).to_bytes(4, "big"))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

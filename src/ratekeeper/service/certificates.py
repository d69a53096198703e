"""The certificate for TLS: whether clients can be served with it, found out before they are."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple, NoReturn


class Certificate(NamedTuple):
    """A certificate with its chain, and its key, in files in PEM format."""

    chain: Path
    key: Path

    def check(self) -> None:
        """Raise a ValueError that says what is wrong, unless clients that trust the certificate accept it now."""
        for path in self:
            try:
                path.read_bytes()
            except OSError as error:
                raise ValueError(f"cannot read {path}: {error.strerror}") from None
        _shake_hands(self._server(), self._client(), self.chain)

    def content(self) -> tuple[bytes, bytes]:
        """Return what is in the files."""
        return self.chain.read_bytes(), self.key.read_bytes()

    def _server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.chain, self.key, self._refuse_encrypted)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ValueError(f"the key in {self.key} does not belong to the certificate in {self.chain}") from None
            raise ValueError(
                f"{self.chain} and {self.key} must be a certificate and its key, in PEM format: {error}"
            ) from None
        return context

    def _client(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.chain)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate vouches for itself
        return context

    def _refuse_encrypted(self) -> NoReturn:
        raise ValueError(f"the key in {self.key} is encrypted; decrypt it, and protect the file by its permissions")


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, chain: Path) -> None:
    """Connect both in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                raise ValueError(f"clients refuse the certificate in {chain}: {error.verify_message}") from None
            except ssl.SSLError as error:
                raise ValueError(f"the certificate in {chain} cannot be used: {error}") from None
            ends.remove(end)

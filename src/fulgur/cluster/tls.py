"""TLS between fronts and replicas: each side shows a certificate that the cluster's own authority has signed.

Names in certificates are not compared with addresses: replicas come and go, and whoever holds a certificate of this
authority belongs to the cluster. The shared secret is proven inside the encrypted connection all the same.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from fulgur.errors import UsageError
from fulgur.server.config import Cluster
from fulgur.workspace import folders


@dataclass(frozen=True)
class Tls:
    """The contexts for the side that listens and for the side that connects."""

    replica: ssl.SSLContext
    front: ssl.SSLContext


def load(config: Cluster) -> Tls | None:
    """Load the certificates; None when connections are not encrypted."""
    given = {name: getattr(config, name) for name in ("certificate", "certificate_key", "authority")}
    if not any(given.values()):
        return None
    missing = [name for name, file in given.items() if not file]
    if missing:
        raise UsageError(f"cluster.{missing[0]} is missing: TLS needs {', '.join(given)}.", hint="See docs/cluster.md.")
    contexts = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(folders.expanded(config.certificate), folders.expanded(config.certificate_key))
            context.load_verify_locations(folders.expanded(config.authority))
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(given.values())
            raise UsageError(f"The cluster's certificates cannot be used ({files}): {error}") from None
        contexts.append(context)
    return Tls(*contexts)

"""What a sandbox is told of its doors: variables, and git's configuration. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.kit.origin import Origin, UrlRefused, origin_of
from services.sandbox.hand import Doors
from services.sandbox.runner.trust import BUNDLE, JAVA, OWN

GIT, EGRESS = "git", "egress"
_LOOPBACK = "localhost,127.0.0.1,::1"


@dataclass(frozen=True)
class Prepared:
    """What the vault proxy says of a session's doors. `placeholders` are variables and what stands for their values.

    `repositories` are `https://host/owner/name`, or `https://host/owner/*` for all that are below.
    """

    placeholders: tuple[tuple[str, str], ...] = ()
    ca_certificate: str = ""
    repositories: tuple[str, ...] = ()


def door_path(url: str) -> str:
    """Returns where the git door has a repository: `/host[:port]/owner/name`. Raises UrlRefused."""
    return f"/{_authority(origin_of(url))}{_path(url)}"


def _authority(origin: Origin) -> str:
    return str(origin).partition("://")[2]


def _path(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2]


def outfit(prepared: Prepared, doors: Doors) -> Mapping[str, str]:
    """Returns the variables for tools. Of a door that is not open there are none."""
    env: dict[str, str] = {}
    if EGRESS in doors.ports:
        env |= dict(prepared.placeholders)
        env |= _proxy(doors.ports[EGRESS]) | _trust(doors, bool(prepared.ca_certificate))
    if GIT in doors.ports:
        env |= _git(prepared.repositories, doors.ports[GIT], every=EGRESS not in doors.ports)
    return env


def _proxy(port: int) -> dict[str, str]:
    proxy = f"http://127.0.0.1:{port}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    return {**dict.fromkeys(names, proxy), "no_proxy": _LOOPBACK, "NO_PROXY": _LOOPBACK, "NODE_USE_ENV_PROXY": "1"}


def _trust(doors: Doors, own: bool) -> dict[str, str]:
    """curl, git, pip, Python, Go and Rust read a bundle; node adds one to its own; Java has a format of its own."""
    bundle, port = f"{doors.folder}/{BUNDLE}", doors.ports[EGRESS]
    bundled = (
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
        "npm_config_cafile",  # before NODE_EXTRA_CA_CERTS where an image's own npmrc has one
    )
    java = {
        "javax.net.ssl.trustStore": f"{doors.folder}/{JAVA}",
        "javax.net.ssl.trustStoreType": "JKS",
        **{f"{scheme}.proxyHost": "127.0.0.1" for scheme in ("http", "https")},
        **{f"{scheme}.proxyPort": str(port) for scheme in ("http", "https")},
    }
    return {
        **dict.fromkeys(bundled, bundle),
        **({"NODE_EXTRA_CA_CERTS": f"{doors.folder}/{OWN}"} if own else {}),
        "JAVA_TOOL_OPTIONS": " ".join(f"-D{name}={value}" for name, value in java.items()),
    }


def _git(repositories: Iterable[str], port: int, every: bool) -> dict[str, str]:
    """Returns git's configuration. As variables it goes before that of any repository.

    `every` sends all repositories of the hosts to the door, which says why most are refused: nothing else leads there.
    """
    config = [
        ("protocol.allow", "never"),
        ("protocol.http.allow", "always"),
        ("protocol.https.allow", "always"),
        ("protocol.file.allow", "user"),
        ("http.followRedirects", "false"),
        ("credential.helper", ""),
        ("core.askPass", ""),
        ("core.fsmonitor", "false"),
        ("submodule.recurse", "false"),
    ]
    for repository in repositories:
        config += [row for row in _instead(repository, port, every) if row not in config]
    env = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _instead(repository: str, port: int, every: bool) -> list[tuple[str, str]]:
    try:
        origin = origin_of(repository)
    except UrlRefused:
        return []
    path = "/" if every else _path(repository).removesuffix("*")
    key = f"url.http://127.0.0.1:{port}/{_authority(origin)}{path}.insteadOf"
    written = f"{repository.partition('://')[0]}://{_authority(origin)}"  # as it is in the checkout's `origin`
    forms = (f"{written}{path}", f"git@{origin.host}:{path[1:]}", f"ssh://git@{origin.host}{path}")
    return [(key, form) for form in forms]

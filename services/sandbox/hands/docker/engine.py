"""The Docker Engine's API. Its SDK is blocking: every call to it runs in a thread."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from services.kit.errors import Unavailable
from services.kit.logs import Log

if TYPE_CHECKING:
    import docker

T = TypeVar("T")
BACKEND = "docker"
ENGINE_SECONDS = 60  # of silence of the engine
CALLS_AT_ONCE = 16
CALL_SECONDS = 180.0  # of a call, with its wait for a thread
_UNIX = "unix://"
_log = Log("services.sandbox.hands.docker")


class Engine:
    """A Docker Engine at an address. Connects when it is first asked."""

    def __init__(self, host: str) -> None:
        """Takes the address as DOCKER_HOST has it."""
        self._host = host
        self._threads: ThreadPoolExecutor | None = None  # its own: an engine that hangs must hold up nothing else
        self._client: docker.APIClient | None = None

    async def ask(self, call: Callable[[docker.APIClient], T], image: str = "") -> T:
        """Calls the engine. What goes wrong with it is Unavailable (`BACKEND_UNAVAILABLE`), with what to do."""
        if not self._host.startswith(_UNIX):
            raise unavailable(
                "DOCKER_HOST is no unix:// socket: an engine on another machine would not see the sandboxes' "
                "sockets. Run a sandbox service beside that engine, or use a remote hand"
            )
        if self._threads is None:
            self._threads = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="docker")
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await asyncio.get_running_loop().run_in_executor(self._threads, self._ask, call, image)
        except TimeoutError:
            raise unavailable(f"the Docker Engine has not answered within {CALL_SECONDS:.0f} s") from None

    def _ask(self, call: Callable[[docker.APIClient], T], image: str) -> T:
        import requests
        from docker.errors import DockerException, ImageNotFound

        try:
            self._knock()
            return call(self._connected())
        except ImageNotFound:
            raise unavailable(
                f"the Docker Engine has no image {image}: build the base image by `make image`, or load or pull the "
                "other"
            ) from None
        except (DockerException, requests.RequestException, OSError) as error:
            _log.warning("docker engine failed", host=self._host, error=str(error)[:500])
            raise unavailable(
                f"no Docker Engine does this at {self._host}; see the service's log, and `docker info`. Start the "
                "engine or set DOCKER_HOST"
            ) from None

    async def close(self) -> None:
        """Lets go of connections."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)
            self._client = None
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _knock(self) -> None:
        """Raises OSError when nobody listens on the engine's socket: the SDK would leave one of its own open."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.connect(self._host.removeprefix(_UNIX))

    def _connected(self) -> docker.APIClient:
        if self._client is None:
            import docker

            self._client = docker.APIClient(base_url=self._host, timeout=ENGINE_SECONDS, version="auto")
        return self._client


def unavailable(message: str) -> Unavailable:
    """Makes the error of an engine that cannot do what was asked."""
    return Unavailable("BACKEND_UNAVAILABLE", message, backend=BACKEND)


def remove(client: docker.APIClient, name: str) -> None:
    """Kills and removes a container. Idempotent, also while another call removes it."""
    from docker.errors import APIError, NotFound

    try:
        client.remove_container(name, v=True, force=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != 409:  # its removal is in progress
            raise


def state(client: docker.APIClient, name: str) -> dict[str, Any] | None:
    """Returns the `State` of a container; None when there is none."""
    from docker.errors import NotFound

    try:
        found: dict[str, Any] = client.inspect_container(name)["State"]
    except NotFound:
        return None
    return found

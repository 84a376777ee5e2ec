"""A running service, as commands call it: one answer or one error that says what to do."""

import os
from typing import Annotated, Any
from urllib.parse import quote

import typer

URL_VARIABLE = "SHARDWRIGHT_URL"
KEY_VARIABLE = "SHARDWRIGHT_API_KEY"
DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_S = 60.0

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        envvar=URL_VARIABLE,
        help=f"The service. The key is taken from {KEY_VARIABLE}, so that it stands in no list of processes.",
    ),
]


class Remote:
    """Calls below one address, with the key of the environment."""

    def __init__(self, url: str) -> None:
        from runtime_client.client import checked_url

        key = os.environ.get(KEY_VARIABLE)
        self.url = checked_url(url)
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str, **parameters: Any) -> Any:  # noqa: ANN401 - JSON
        """What is at a path; parameters that are None are left out."""
        return self._get(path, parameters).json()

    def bytes_of(self, path: str, **parameters: Any) -> bytes:  # noqa: ANN401 - query values
        """As `get`, as it came."""
        content: bytes = self._get(path, parameters).content
        return content

    def send(self, method: str, path: str, body: object, **headers: str) -> Any:  # noqa: ANN401 - JSON
        """Send JSON; underscores in names of headers become hyphens."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._call(method, path, json=body, headers=named).json()

    def _get(self, path: str, parameters: dict[str, Any]) -> Any:  # noqa: ANN401 - an httpx2 response
        given = {name: value for name, value in parameters.items() if value is not None}
        return self._call("GET", path, params=given)

    def _call(self, method: str, path: str, **options: Any) -> Any:  # noqa: ANN401 - an httpx2 response
        import httpx2

        from runtime_client.errors import ServiceUnavailable
        from runtime_client.service import problem_of

        headers = {**self._headers, **options.pop("headers", {})}
        try:
            with httpx2.Client(base_url=self.url, timeout=TIMEOUT_S) as http:
                response = http.request(method, path, headers=headers, **options)
        except httpx2.RequestError as error:
            raise ServiceUnavailable(
                f"{self.url} does not answer ({type(error).__name__} {error}); is 'shardwright serve' running? "
                f"Say where with --url or {URL_VARIABLE}"
            ) from None
        if response.status_code >= 300:
            raise problem_of(response)
        return response


def path_of(*parts: object) -> str:
    """`/v1/a/b`, with every part quoted."""
    return "/v1/" + "/".join(quote(str(part), safe=":") for part in parts)

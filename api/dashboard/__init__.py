"""Pages for people, over the same services as the API. Parts are put together by `api.http.app`."""

import api.http  # noqa: F401 - the application imports this package; whichever comes first, both load

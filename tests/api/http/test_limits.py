from tests.api.http.server import decoder_request, running_client
from tests.api.http.test_problems import check_problem


def test_requests_that_ask_for_more_than_the_operator_allows(sqlite_url: str) -> None:
    limits = {"max_calls": 5, "max_search_s": 100.0, "max_deterministic_time": 50.0}
    with running_client(sqlite_url, **limits) as client:
        asked = {**decoder_request(3), "search": {"deterministic_time": 60.0}}
        problem = check_problem(client.post("/v1/plans", json=asked), 422, "invalid_document")
        paths = ["model.calls", "search.wall_clock_s", "search.deterministic_time"]
        assert [item["path"] for item in problem["problems"]] == paths
        modest = {**decoder_request(2), "search": {"wall_clock_s": 90.0}}
        assert client.post("/v1/plans", json=modest).status_code == 200

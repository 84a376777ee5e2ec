import threading

import pytest

from api.http.examples import CLUSTER, MODEL, PROFILE, REQUEST
from planner.plan import make_plan
from planner.schema import ClusterDescription, ModelDescription, Plan, PlanRequest, Profile
from profiles_db import documents, executors, jobs, plans, profiled, provisional, requests
from profiles_db.engine import Database
from profiles_db.pages import Cursor, InvalidCursor
from profiles_db.tables import DocumentKind, JobPriority, JobRow, JobState

TENANT = "default"


@pytest.fixture(scope="module")
def request_document() -> PlanRequest:
    return PlanRequest.from_object({**REQUEST, "profile": PROFILE})


@pytest.fixture(scope="module")
def plan(request_document: PlanRequest) -> Plan:
    return make_plan(request_document)


def test_documents_come_back_byte_for_byte_and_are_kept_once(database: Database) -> None:
    model = ModelDescription.from_object(MODEL)
    with database.write() as session:
        content_hash, is_new = documents.put(session, TENANT, model)
        assert (content_hash, is_new) == (model.content_hash(), True)
    with database.write() as session:
        assert documents.put(session, TENANT, model) == (content_hash, False)
        assert documents.get_bytes(session, TENANT, DocumentKind.MODEL, content_hash) == model.canonical_bytes()
        assert documents.get_bytes(session, TENANT, DocumentKind.CLUSTER, content_hash) is None
        row = documents.get_row(session, TENANT, DocumentKind.MODEL, content_hash)
        assert row is not None
        assert len(row.body) < row.size_bytes == len(model.canonical_bytes())


def profile_of(name: str, cluster: str, *blocks: str, forward_ns: int = 5) -> Profile:
    calls = [
        {"kind": "block", "block": block, "micro_batch": 1, "sequence": 8, "forward_ns": forward_ns}
        for block in blocks
    ]
    return Profile.from_object({"name": name, "cluster": cluster, "calls": calls})


def test_the_newest_profile_with_most_blocks_on_a_cluster_is_found(database: Database) -> None:
    one, two = ("sha256:" + letter * 64 for letter in "ab")
    stored = [
        profile_of("both", "here", one, two),
        profile_of("newer", "here", one, two, forward_ns=7),
        profile_of("one only", "here", one, forward_ns=9),
        profile_of("elsewhere", "there", one, two),
    ]
    for profile in stored:
        with database.write() as session:
            documents.put(session, "blocks", profile)
            documents.put(session, "blocks", profile)
    with database.read() as session:
        assert profiled.newest(session, "blocks", "here", {one, two}) == stored[1].content_hash()
        assert profiled.newest(session, "blocks", "there", {one}) == stored[3].content_hash()
        assert profiled.newest(session, "blocks", "here", {"sha256:" + "c" * 64}) is None
        assert profiled.newest(session, "others", "here", {one, two}) is None
        rows = profiled.calls_at(session, "blocks", "here", one, micro_batch=1, sequence=8)
        assert [row.forward_ns for row in rows] == [9, 7, 5]
        assert profiled.calls_at(session, "blocks", "here", one, micro_batch=2, sequence=8) == []
    with database.write() as session:
        profiled.remove(session, "blocks", stored[1].content_hash())
    with database.read() as session:
        assert profiled.newest(session, "blocks", "here", {one, two}) == stored[0].content_hash()


def test_concurrent_puts_of_one_document_make_one_row(database: Database) -> None:
    model, results = ModelDescription.from_object(MODEL), []

    def put() -> None:
        with database.write() as session:
            results.append(documents.put(session, TENANT, model)[1])

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [False] * 7 + [True]


def test_pages_show_every_document_once_newest_first(database: Database) -> None:
    names = [f"cluster {number}" for number in range(7)]
    for name in names:
        with database.write() as session:
            documents.put(session, TENANT, ClusterDescription.from_object({**CLUSTER, "name": name}))
    seen, cursor = [], None
    while True:
        with database.read() as session:
            page = documents.page(session, TENANT, DocumentKind.CLUSTER, cursor=cursor, limit=3)
        seen += [row.name for row in page.items]
        if page.next is None:
            break
        cursor = Cursor.decode(page.next)
    assert seen == names[::-1]


@pytest.mark.parametrize("text", ["", "x", "!!!!", "MTIz", "LTF8YQ", "MXwA", "\u00e9", "A" * 300])
def test_a_cursor_of_unknown_origin_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        Cursor.decode(text)


def test_a_request_comes_back_as_it_was(database: Database, request_document: PlanRequest) -> None:
    for _ in range(2):
        with database.write() as session:
            requests.put(session, TENANT, request_document, request_document.content_hash())
    with database.read() as session:
        assert requests.get(session, TENANT, request_document.content_hash()) == request_document
        assert requests.get(session, TENANT, "sha256:none") is None
        profile = Profile.from_object(PROFILE)
        assert documents.get_bytes(session, TENANT, DocumentKind.PROFILE, profile.content_hash()) is not None


def test_plans_are_found_by_identity_and_by_filters(
    database: Database, request_document: PlanRequest, plan: Plan
) -> None:
    with database.write() as session:
        requests.put(session, TENANT, request_document, request_document.content_hash())
        assert plans.put(session, TENANT, plan)
        assert not plans.put(session, TENANT, plan)
    with database.read() as session:
        body = plans.get_bytes(session, TENANT, plan.envelope.plan_id)
        assert body is not None
        assert Plan.from_json(body) == plan
        assert plans.get_bytes(session, TENANT, "sha256:none") is None
        model_hash = request_document.model.content_hash()
        assert [row.plan_id for row in plans.page(session, TENANT, model_hash=model_hash).items] == [
            plan.envelope.plan_id
        ]
        assert plans.page(session, TENANT, cluster_hash=model_hash).items == []
        assert len(plans.page(session, TENANT, outcome="feasible").items) == 1
        assert plans.page(session, TENANT, outcome="infeasible").items == []


@pytest.fixture
def job_id(database: Database, request_document: PlanRequest) -> str:
    request_hash = request_document.content_hash()
    with database.write() as session:
        requests.put(session, TENANT, request_document, request_hash)
        return jobs.add(session, TENANT, request_hash, "0.1.0", attempt=1, submitted_by="key:1").job_id


def test_a_job_is_added_once(database: Database, request_document: PlanRequest, job_id: str) -> None:
    request_hash = request_document.content_hash()
    with database.write() as session:
        again = jobs.add(session, TENANT, request_hash, "0.1.0", attempt=1, submitted_by="key:1")
        assert again.job_id == job_id == f"default:{request_hash}:0.1.0:1"
        second = jobs.add(session, TENANT, request_hash, "0.1.0", attempt=2, submitted_by="key:1")
        newest = jobs.latest(session, "default", request_hash, "0.1.0")
        assert newest is not None
        assert newest.job_id == second.job_id
        assert jobs.latest(session, "other", request_hash, "0.1.0") is None
        assert jobs.count_by_state(session) == {"queued": 2}


def test_only_the_newest_run_may_write(database: Database, plan: Plan, job_id: str) -> None:
    with database.write() as session:
        first = jobs.start(session, job_id)
        assert first is not None
        assert first.fence == 1
    with database.write() as session:
        second = jobs.start(session, job_id)
        assert second is not None
        assert second.fence == 2
    with database.write() as session:
        plans.put(session, TENANT, plan)
        plan_id = plan.envelope.plan_id
        assert not jobs.add_event(session, job_id, fence=1, data={"message": "late"})
        assert jobs.add_event(session, job_id, fence=2, data={"message": "in time"})
        assert not jobs.finish(session, job_id, fence=1, plan_id=plan_id)
        assert jobs.finish(session, job_id, fence=2, plan_id=plan_id)
        assert not jobs.finish(session, job_id, fence=2, problem={"code": "x"})
    with database.write() as session:
        assert jobs.start(session, job_id) is None
        job = jobs.get(session, TENANT, job_id)
        assert job is not None
        assert (job.state, job.plan_id, job.problem) == (JobState.SUCCEEDED, plan_id, None)
        assert [event.data["message"] for event in jobs.events_after(session, job_id, 0)] == ["in time"]
        assert jobs.unfinished(session) == []


def test_an_orderly_interruption_is_counted_apart(database: Database, job_id: str) -> None:
    with database.write() as session:
        jobs.start(session, job_id)
        jobs.put_back(session, job_id, fence=1)
    with database.write() as session:
        job = jobs.start(session, job_id)
        assert job is not None
        assert (job.fence, job.num_interruptions, job.state) == (2, 1, JobState.RUNNING)


def test_executors_beat_retire_and_are_forgotten(database: Database) -> None:
    with database.write() as session:
        executors.beat(session, "me")
        executors.beat(session, "other")
        executors.beat(session, "other")
        executors.beat(session, "retired")
        executors.retire(session, "retired")
    with database.write() as session:
        beats = {row.executor_id: row.heartbeat_at_us for row in executors.everyone(session)}
        assert set(beats) == {"me", "other", "retired"}
        assert beats["retired"] == 0 < beats["me"] <= beats["other"]
        executors.forget(session, ["retired"])
        assert [row.executor_id for row in executors.everyone(session)] == ["me", "other"]


def test_jobs_of_a_submitter_are_released_a_few_at_a_time(
    database: Database, request_document: PlanRequest
) -> None:
    request_hash = request_document.content_hash()

    def add(attempt: int, priority: JobPriority, submitted_by: str = "key:1") -> str:
        with database.write() as session:
            more = {"attempt": attempt, "submitted_by": submitted_by, "priority": priority}
            return jobs.add(session, TENANT, request_hash, "0.1.0", **more).job_id

    def release(submitted_by: str, priority: JobPriority) -> list[tuple[str, int]]:
        with database.write() as session:
            taken = jobs.release(session, submitted_by, priority, at_most=2)
            return [(job.job_id, rank) for job, rank in taken]

    with database.write() as session:
        requests.put(session, TENANT, request_document, request_hash)
    batch = [add(attempt, JobPriority.BATCH) for attempt in (1, 2, 3)]
    launcher = add(4, JobPriority.LAUNCHER)
    other = add(5, JobPriority.BATCH, "key:2")
    with database.read() as session:
        everyone = {("key:1", JobPriority.BATCH), ("key:1", JobPriority.LAUNCHER), ("key:2", JobPriority.BATCH)}
        assert set(jobs.waiting(session)) == everyone
    assert release("key:1", JobPriority.BATCH) == [(batch[0], 0), (batch[1], 1)]
    assert release("key:1", JobPriority.BATCH) == []
    assert release("key:1", JobPriority.LAUNCHER) == [(launcher, 0)]
    assert release("key:2", JobPriority.BATCH) == [(other, 0)]
    with database.write() as session:
        jobs.start(session, batch[0])
        assert jobs.finish(session, batch[0], fence=1, problem={"code": "x"})
    assert release("key:1", JobPriority.BATCH) == [(batch[2], 1)]
    with database.read() as session:
        assert jobs.waiting(session) == []
        assert [job.job_id for job in jobs.released(session)] == [batch[1], batch[2], launcher, other]


def test_a_cancelled_job_takes_no_result(database: Database, plan: Plan, job_id: str) -> None:
    with database.write() as session:
        jobs.start(session, job_id)
        assert jobs.still_running(session, {job_id: 1}) == {job_id}
        assert not jobs.cancel(session, "other", job_id, {"code": "job_cancelled"})
        assert jobs.cancel(session, TENANT, job_id, {"code": "job_cancelled"})
    with database.write() as session:
        assert not jobs.cancel(session, TENANT, job_id, {"code": "again"})
        assert jobs.still_running(session, {job_id: 1}) == set()
        plans.put(session, TENANT, plan)
        assert not jobs.finish(session, job_id, fence=1, plan_id=plan.envelope.plan_id)
        assert jobs.start(session, job_id) is None
        job = jobs.get(session, TENANT, job_id)
        assert job is not None
        assert (job.state, job.plan_id, job.problem) == (JobState.CANCELLED, None, {"code": "job_cancelled"})


def test_provisional_plans_are_kept_apart_and_fenced(database: Database, plan: Plan, job_id: str) -> None:
    with database.write() as session:
        first = jobs.start(session, job_id)
        assert first is not None
        assert provisional.put(session, first, plan)
        assert provisional.put(session, first, plan)
    with database.write() as session:
        second = jobs.start(session, job_id)
    with database.write() as session:
        assert second is not None
        late = Plan.of(plan.body.model_copy(update={"name": "late"}))
        session.expire_all()
        assert not provisional.put(session, _as_of(first, fence=1), late)
        plan_id = plan.envelope.plan_id
        assert provisional.latest(session, job_id) == plan_id
        assert provisional.get_bytes(session, TENANT, plan_id) == plan.to_json().encode()
        assert provisional.get_bytes(session, "other", plan_id) is None
        assert plans.page(session, TENANT).items == []
        assert plans.get_bytes(session, TENANT, plan_id) is None


def _as_of(job: JobRow, *, fence: int) -> JobRow:
    return JobRow(job_id=job.job_id, tenant=job.tenant, fence=fence)

from planner.program.edges import Issued, Recorded, Waited, resolve_edges


def test_an_operation_waits_for_the_last_operation_before_the_event():
    log = [
        Issued(stream=0, operation=0),
        Issued(stream=0, operation=1),
        Recorded(stream=0, event=7),
        Issued(stream=0, operation=2),
        Waited(stream=1, event=7),
        Issued(stream=1, operation=3),
    ]
    assert resolve_edges(log)[3] == (1,)


def test_a_second_wait_for_the_same_event_is_implied_by_stream_order():
    log = [
        Issued(stream=0, operation=0),
        Recorded(stream=0, event=7),
        Waited(stream=1, event=7),
        Issued(stream=1, operation=1),
        Waited(stream=1, event=7),
        Issued(stream=1, operation=2),
    ]
    assert resolve_edges(log) == {0: (), 1: (0,), 2: ()}


def test_an_edge_that_another_edge_implies_is_left_out():
    log = [
        Issued(stream=0, operation=0),
        Recorded(stream=0, event=7),
        Waited(stream=1, event=7),
        Issued(stream=1, operation=1),
        Recorded(stream=1, event=8),
        Waited(stream=2, event=7),
        Waited(stream=2, event=8),
        Issued(stream=2, operation=2),
    ]
    assert resolve_edges(log)[2] == (1,)


def test_an_event_after_a_wait_without_an_operation_carries_the_wait_on():
    log = [
        Issued(stream=0, operation=0),
        Recorded(stream=0, event=7),
        Waited(stream=1, event=7),
        Recorded(stream=1, event=8),
        Waited(stream=2, event=8),
        Issued(stream=2, operation=1),
    ]
    assert resolve_edges(log)[1] == (0,)


def test_events_from_before_the_log_count_as_past():
    assert resolve_edges([Waited(stream=1, event=3), Issued(stream=1, operation=0)]) == {0: ()}

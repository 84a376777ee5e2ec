"""One rank: transfers over a wire beside gloo's own, several at once and with ranks that come late."""

import time

import torch
import torch.distributed as dist

from benchmarks.network.wire import Wire


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    wire = Wire()
    torch.manual_seed(rank)
    under_way = []
    for index, size in enumerate((1, 1000, 300_000)):
        time.sleep(0.02 * ((rank + index) % world))
        share, full = torch.rand(size), torch.rand(world * size)
        gathered, mean, total = torch.empty(world * size), torch.empty(size), torch.empty(size)
        works = [
            wire.all_gather(gathered, share),
            wire.reduce_scatter(mean, full, divide=True),
            wire.reduce_scatter(total, full, divide=False),
        ]
        under_way.append((share, full, gathered, mean, total, works))
    for share, full, gathered, mean, total, works in under_way:
        for work in works:
            assert work.wait()
            assert work.wait(), "twice is as good as once"
        expected_gathered, expected_total = torch.empty_like(gathered), torch.empty_like(total)
        dist.all_gather_single(expected_gathered, share)
        dist.reduce_scatter_single(expected_total, full)
        assert torch.equal(gathered, expected_gathered)
        torch.testing.assert_close(total, expected_total)
        torch.testing.assert_close(mean, expected_total / world)
    in_place = torch.zeros(2 * world)
    in_place[2 * rank : 2 * rank + 2] = rank
    wire.all_gather(in_place, in_place[2 * rank : 2 * rank + 2]).wait()
    assert in_place.tolist() == [float(one) for one in range(world) for _ in range(2)]
    print("equal")


if __name__ == "__main__":
    main()

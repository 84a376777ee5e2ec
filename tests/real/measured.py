"""One rank of a job that measures its steps and reports them; prints its measurements as JSON lines."""

import sys
import time

import torch
import torch.distributed as dist

from runtime_client.client import PlanClient
from runtime_client.measure import StepTimer


def main() -> None:
    url, cache, plan_id = sys.argv[1:]
    dist.init_process_group("gloo")
    client = PlanClient(url, cache_dir=cache)
    timer = StepTimer(plan_id, run="small", report=client.report, steps_per_range=6, warm_up_steps=4)
    model = torch.nn.Linear(64, 64)
    for _ in range(10):
        with timer.step():
            model(torch.randn(8, 64)).sum().backward()
            time.sleep(0.01 * dist.get_rank())
    timer.wait()
    for measurement in timer.measurements:
        print(measurement.to_json().replace("\n", ""))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
